// Every step takes one token of each row that writes, and up to a chunk of each that still reads
// its prompt; if none reads, the step is the one for single tokens. All processes choose tokens
// from the same logits, and so the same ones.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/fail.h"
#include "generate/stepper.h"

namespace tessera {

namespace {

/// The likeliest tokens with their log-probabilities, and the logarithm of the sum.
TokenScore score_of(const float* logits, int64_t vocabulary, int32_t token, int64_t choices) {
  const double top = *std::max_element(logits, logits + vocabulary);
  double sum = 0;
  for (int64_t v = 0; v < vocabulary; ++v) sum += std::exp(logits[v] - top);
  const double total = top + std::log(sum);
  std::vector<int32_t> order(static_cast<size_t>(vocabulary));
  std::iota(order.begin(), order.end(), 0);
  const auto end = order.begin() + std::min(choices, vocabulary);
  std::partial_sort(order.begin(), end, order.end(), [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  TokenScore score{token, logits[token] - total, {}};
  for (auto it = order.begin(); it != end; ++it) score.best.emplace_back(*it, logits[*it] - total);
  return score;
}

void require_request(const Stepper& stepper, const GenerationRequest& r, size_t number, Loc at) {
  stepper.require_prompt(r.prompt, r.max_tokens, number, at);
  const int64_t most = stepper.options().choices;
  TESSERA_REQUIRE(r.choices >= 0 && r.choices <= most && (!r.score_prompt || most > 0),
                  "[generate] prompt {}: {} choices{}; GeneratorOptions::choices is {} ({})",
                  number, r.choices, r.score_prompt ? " and scores of the prompt" : "", most,
                  where(at));
}

/// Whether a text needs no step.
bool is_trivial(const GenerationRequest& r) {
  return r.max_tokens == 0 && (!r.score_prompt || r.prompt.size() == 1);
}

/// The texts of a call of run().
class Writer {
 public:
  Writer(Stepper& stepper, const std::vector<GenerationRequest>& requests, Loc at)
      : stepper_(stepper), requests_(requests), at_(at), results_(requests.size()) {}

  std::vector<Generation> write() {
    stepper_.clear();
    texts_.assign(static_cast<size_t>(stepper_.rows()), {});
    while (fill_rows()) step();
    return std::move(results_);
  }

 private:
  /// Of a row; none: the row is free.
  struct Text {
    const GenerationRequest* request = nullptr;
    Generation* result = nullptr;
    bool scores_prompt() const {
      return request && request->score_prompt && result->tokens.empty();
    }
  };

  size_t number_of(const Text& text) const {
    return static_cast<size_t>(text.request - requests_.data());
  }

  /// Begins texts in free rows. Returns whether there are texts.
  bool fill_rows() {
    bool busy = false;
    for (size_t r = 0; r < texts_.size(); ++r) {
      while (!texts_[r].request && next_ < requests_.size()) {
        const size_t i = next_++;
        if (is_trivial(requests_[i])) continue;
        texts_[r] = {&requests_[i], &results_[i]};
        stepper_.begin(static_cast<int64_t>(r), requests_[i].prompt);
      }
      busy |= texts_[r].request != nullptr;
    }
    return busy;
  }

  void step() {
    const bool scores = std::any_of(texts_.begin(), texts_.end(),
                                    [](const Text& text) { return text.scores_prompt(); });
    const Array logits = stepper_.step(scores, at_);
    if (scores) take_prompt_scores();
    for (size_t r = 0; r < texts_.size(); ++r) {
      Stepper::Row& row = stepper_.row(static_cast<int64_t>(r));
      if (!texts_[r].request || !row.is_read()) continue;
      const int64_t first = static_cast<int64_t>(r) * stepper_.model().vocab;
      if (extend(texts_[r], row, logits.data<float>() + first)) continue;
      texts_[r] = {};
      row = {};
    }
  }

  void take_prompt_scores() {
    Session& session = stepper_.session();
    const nn::DecoderStep& d = stepper_.last_step();
    const Array log_probs = session.fetch(d.log_probs.name()),
                best = session.fetch(d.best_tokens.name()),
                of_best = session.fetch(d.best_log_probs.name());
    const int64_t width = best.sizes.back();
    for (size_t r = 0; r < texts_.size(); ++r) {
      if (!texts_[r].scores_prompt()) continue;
      const Stepper::Row& row = stepper_.row(static_cast<int64_t>(r));
      const int64_t first = row.done - row.count;
      for (int64_t i = 0; i < row.count && first + i + 1 < std::ssize(row.text); ++i) {
        const int64_t at = static_cast<int64_t>(r) * stepper_.options().chunk + i;
        TokenScore score{row.text[static_cast<size_t>(first + i + 1)], log_probs.at(at), {}};
        for (int64_t k = 0; k < texts_[r].request->choices; ++k)
          score.best.emplace_back(static_cast<int32_t>(best.at(at * width + k)),
                                  of_best.at(at * width + k));
        // One number for one token, though two sums were rounded.
        for (const auto& [token, log_prob] : score.best) {
          if (token == score.token) score.log_prob = log_prob;
        }
        TESSERA_REQUIRE(!std::isnan(score.log_prob),
                        "[generate] the log-probability of token {} of prompt {} is nan; the "
                        "parameters have values that are not finite ({})",
                        first + i + 1, number_of(texts_[r]), where(at_));
        texts_[r].result->prompt_scores.push_back(std::move(score));
      }
    }
  }

  /// Adds the next token of a row that has read all its tokens. Returns false if the text ends.
  bool extend(const Text& text, Stepper::Row& row, const float* logits) {
    const GenerationRequest& request = *text.request;
    if (request.max_tokens == 0) return false;
    const int64_t read = request.choices > 0 ? stepper_.model().vocab : stepper_.vocabulary();
    require_numbers(logits, read, logit_of(number_of(text), row.text.size()), at_);
    const int32_t token =
        sample_token(logits, stepper_.vocabulary(), row.text, request.sampling, at_);
    row.text.push_back(token);
    text.result->tokens.push_back(token);
    if (request.choices > 0)
      text.result->scores.push_back(
          score_of(logits, stepper_.model().vocab, token, request.choices));
    text.result->ended = request.on_token && !request.on_token(token);
    return !text.result->ended && std::ssize(text.result->tokens) < request.max_tokens;
  }

  Stepper& stepper_;
  const std::vector<GenerationRequest>& requests_;
  const Loc at_;
  std::vector<Generation> results_;
  std::vector<Text> texts_;
  size_t next_ = 0;
};

}  // namespace

Generator::Generator(const nn::TransformerOptions& model, Cluster& cluster,
                     const GeneratorOptions& options, Loc at)
    : stepper_(std::make_unique<Stepper>(model, cluster, options, at)) {}

Generator::~Generator() = default;

Session& Generator::session() { return stepper_->session(); }

std::vector<std::string> Generator::parameters() const {
  std::vector<std::string> names;
  for (const Tensor& p : stepper_->graph().parameters()) names.push_back(p.name());
  return names;
}

int64_t Generator::context() const { return stepper_->options().context; }

std::vector<Generation> Generator::run(const std::vector<GenerationRequest>& requests, Loc at) {
  for (size_t i = 0; i < requests.size(); ++i) require_request(*stepper_, requests[i], i, at);
  return Writer(*stepper_, requests, at).write();
}

}  // namespace tessera
