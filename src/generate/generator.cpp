// Every step takes one token of each row that writes, and up to a chunk of each that still reads
// its prompt; if none reads, the step is the one for single tokens. All processes choose tokens
// from the same logits, and so the same ones.
#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>

#include "base/fail.h"
#include "generate/stepper.h"

namespace tessera {

namespace {

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

}  // namespace

TokenScore token_score(const float* logits, int64_t vocabulary, int32_t token, int64_t choices) {
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

class TextQueue::State {
 public:
  explicit State(Stepper& stepper)
      : stepper_(stepper), texts_(static_cast<size_t>(stepper.rows())) {
    stepper_.clear();
  }

  int64_t add(GenerationRequest request, int64_t group, Loc at) {
    const int64_t number = next_++;
    require_request(stepper_, request, static_cast<size_t>(number), at);
    Text text{number, group, std::make_unique<GenerationRequest>(std::move(request)), {}};
    if (is_trivial(*text.request))
      ended_.push_back(std::move(text));
    else
      waiting_.push_back(std::move(text));
    return number;
  }

  void drop(int64_t number) {
    const auto is_it = [&](const Text& text) { return text.request && text.number == number; };
    std::erase_if(waiting_, is_it);
    for (size_t r = 0; r < texts_.size(); ++r) {
      if (is_it(texts_[r])) free_row(r);
    }
  }

  std::vector<std::pair<int64_t, Generation>> step(Loc at) {
    fill_rows();
    if (running() > 0) write(at);
    std::vector<std::pair<int64_t, Generation>> results;
    for (Text& text : std::exchange(ended_, {}))
      results.emplace_back(text.number, std::move(text.result));
    return results;
  }

  int64_t running() const {
    return std::count_if(texts_.begin(), texts_.end(),
                         [](const Text& text) { return text.request != nullptr; });
  }
  int64_t waiting() const { return std::ssize(waiting_); }

 private:
  /// Of a row; none: the row is free.
  struct Text {
    int64_t number = 0, group = 0;
    std::unique_ptr<GenerationRequest> request;
    Generation result;
    bool scores_prompt() const { return request && request->score_prompt && result.tokens.empty(); }
  };

  void free_row(size_t r) {
    texts_[r] = {};
    stepper_.row(static_cast<int64_t>(r)) = {};
  }

  /// The next text that waits: of the group that has fewest rows, the first.
  std::deque<Text>::iterator next_text() {
    std::map<int64_t, int64_t> rows;
    for (const Text& text : texts_) rows[text.group] += text.request ? 1 : 0;
    return std::min_element(waiting_.begin(), waiting_.end(), [&](const Text& a, const Text& b) {
      return rows[a.group] < rows[b.group];
    });
  }

  void fill_rows() {
    for (size_t r = 0; r < texts_.size() && !waiting_.empty(); ++r) {
      if (texts_[r].request) continue;
      const auto next = next_text();
      texts_[r] = std::move(*next);
      waiting_.erase(next);
      stepper_.begin(static_cast<int64_t>(r), texts_[r].request->prompt);
    }
  }

  void write(Loc at) {
    const bool scores = std::any_of(texts_.begin(), texts_.end(),
                                    [](const Text& text) { return text.scores_prompt(); });
    const Array logits = stepper_.step(scores, at);
    if (scores) take_prompt_scores(at);
    for (size_t r = 0; r < texts_.size(); ++r) {
      Stepper::Row& row = stepper_.row(static_cast<int64_t>(r));
      if (!texts_[r].request || !row.is_read()) continue;
      const int64_t first = static_cast<int64_t>(r) * stepper_.model().vocab;
      if (extend(texts_[r], row, logits.data<float>() + first, at)) continue;
      ended_.push_back(std::move(texts_[r]));
      free_row(r);
    }
  }

  void take_prompt_scores(Loc caller) {
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
                        first + i + 1, static_cast<size_t>(texts_[r].number), where(caller));
        texts_[r].result.prompt_scores.push_back(std::move(score));
      }
    }
  }

  /// Adds the next token of a row that has read all its tokens. Returns false if the text ends.
  bool extend(Text& text, Stepper::Row& row, const float* logits, Loc at) {
    const GenerationRequest& request = *text.request;
    if (request.max_tokens == 0) return false;
    const int64_t read = request.choices > 0 ? stepper_.model().vocab : stepper_.vocabulary();
    require_numbers(logits, read, logit_of(static_cast<size_t>(text.number), row.text.size()), at);
    const int32_t token =
        sample_token(logits, stepper_.vocabulary(), row.text, request.sampling, at);
    row.text.push_back(token);
    text.result.tokens.push_back(token);
    if (request.choices > 0)
      text.result.scores.push_back(
          token_score(logits, stepper_.model().vocab, token, request.choices));
    text.result.ended = request.on_token && !request.on_token(token);
    return !text.result.ended && std::ssize(text.result.tokens) < request.max_tokens;
  }

  Stepper& stepper_;
  std::vector<Text> texts_;  ///< by row
  std::deque<Text> waiting_;
  std::vector<Text> ended_;  ///< since the last step
  int64_t next_ = 0;
};

TextQueue::TextQueue(Generator& generator) : state_(std::make_unique<State>(*generator.stepper_)) {}
TextQueue::~TextQueue() = default;

int64_t TextQueue::add(GenerationRequest request, int64_t group, Loc at) {
  return state_->add(std::move(request), group, at);
}
void TextQueue::drop(int64_t number) { state_->drop(number); }
std::vector<std::pair<int64_t, Generation>> TextQueue::step(Loc at) { return state_->step(at); }
int64_t TextQueue::running() const { return state_->running(); }
int64_t TextQueue::waiting() const { return state_->waiting(); }

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
  std::vector<Generation> results(requests.size());
  TextQueue queue(*this);
  for (const GenerationRequest& request : requests) queue.add(request, 0, at);
  for (size_t ended = 0; ended < results.size();) {
    for (auto& [number, result] : queue.step(at)) {
      results[static_cast<size_t>(number)] = std::move(result);
      ++ended;
    }
  }
  return results;
}

}  // namespace tessera
