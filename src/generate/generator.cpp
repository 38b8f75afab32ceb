// Every step takes one token of each row that writes, and up to a chunk of each that still reads
// its prompt; if none reads, the step is the one for single tokens. All processes choose tokens
// from the same logits, and so the same ones.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/fail.h"
#include "tessera/generate.h"

namespace tessera {

namespace {

constexpr int64_t kLeastChunk = 8, kUsualTokens = 128;  ///< of all rows in a step

/// A text in a row of the batch.
struct Row {
  const GenerationRequest* request = nullptr;  ///< none: the row is free
  Generation* result = nullptr;
  std::vector<int32_t> text;  ///< prompt and new tokens
  int64_t done = 0;           ///< tokens that the cache has
  int64_t count = 0;          ///< tokens of this step
  bool reads_prompt() const { return result && result->tokens.empty(); }
};

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

}  // namespace

struct Generator::State {
  Graph graph;
  nn::Decoder decoder;
  std::optional<Session> session;
  nn::TransformerOptions model;
  GeneratorOptions options;
  int64_t vocabulary = 0;
  std::vector<Row> rows;
  Array tokens, targets, token, starts, counts;

  void check(const GenerationRequest& r, size_t number, Loc at) const {
    const int64_t size = std::ssize(r.prompt);
    require(size >= 1, "[generate] prompt {} has no tokens; give at least one ({})", number,
            where(at));
    for (int64_t i = 0; i < size; ++i) {
      const int32_t token = r.prompt[static_cast<size_t>(i)];
      require(token >= 0 && token < model.vocab,
              "[generate] token {} of prompt {} is {}, and the vocabulary has {} ({})", i, number,
              token, model.vocab, where(at));
    }
    require(r.max_tokens >= 0, "[generate] prompt {}: {} new tokens; 0 or more ({})", number,
            r.max_tokens, where(at));
    require(size <= options.context && r.max_tokens <= options.context - size,
            "[generate] prompt {} has {} tokens, and {} new ones are more than the context of {} "
            "has left; shorten the prompt, or ask for at most {} ({})",
            number, size, r.max_tokens, options.context,
            std::max<int64_t>(0, options.context - size), where(at));
    require(r.choices >= 0 && r.choices <= options.choices && (!r.score_prompt || options.choices),
            "[generate] prompt {}: {} choices{}; GeneratorOptions::choices is {} ({})", number,
            r.choices, r.score_prompt ? " and scores of the prompt" : "", options.choices,
            where(at));
  }

  /// Takes a text that has nothing to do without a step.
  static bool is_trivial(const GenerationRequest& r) {
    return r.max_tokens == 0 && (!r.score_prompt || r.prompt.size() == 1);
  }

  /// How many tokens each row takes. Returns true if some take more than one.
  bool plan_step() {
    bool reads = false;
    for (Row& row : rows) {
      row.count = row.request ? std::min(options.chunk, std::ssize(row.text) - row.done) : 0;
      reads = reads || row.count > 1;
    }
    return reads;
  }

  void feed_chunk(bool scores) {
    for (int64_t r = 0; r < std::ssize(rows); ++r) {
      const Row& row = rows[static_cast<size_t>(r)];
      for (int64_t i = 0; i < options.chunk; ++i) {
        const auto at = static_cast<size_t>(row.done + i);
        const bool has = i < row.count, next = has && at + 1 < row.text.size();
        tokens.data<int32_t>()[r * options.chunk + i] = has ? row.text[at] : 0;
        targets.data<int32_t>()[r * options.chunk + i] = next ? row.text[at + 1] : 0;
      }
    }
    session->feed("tokens", tokens);
    if (scores) session->feed("targets", targets);
  }

  void feed_token() {
    for (size_t r = 0; r < rows.size(); ++r)
      token.data<int32_t>()[r] =
          rows[r].count > 0 ? rows[r].text[static_cast<size_t>(rows[r].done)] : 0;
    session->feed("token", token);
  }

  /// Feeds and runs a step; returns the logits.
  Array run_step(Loc at) {
    const bool scores = std::any_of(rows.begin(), rows.end(), [](const Row& row) {
      return row.reads_prompt() && row.request->score_prompt;
    });
    const bool reads = plan_step() || scores;
    reads ? feed_chunk(scores) : feed_token();
    for (size_t r = 0; r < rows.size(); ++r) {
      starts.data<int32_t>()[r] = static_cast<int32_t>(rows[r].done);
      counts.data<int32_t>()[r] = static_cast<int32_t>(rows[r].count);
    }
    session->feed("starts", starts);
    session->feed("counts", counts);
    session->run(scores ? "score" : reads ? "read" : "write", at);
    if (scores) take_prompt_scores();
    return session->fetch((reads ? decoder.logits : decoder.next_logits).name());
  }

  void take_prompt_scores() {
    const Array log_probs = session->fetch(decoder.log_probs.name()),
                best = session->fetch(decoder.best_tokens.name()),
                of_best = session->fetch(decoder.best_log_probs.name());
    const int64_t width = best.sizes.back();
    for (size_t r = 0; r < rows.size(); ++r) {
      Row& row = rows[r];
      if (!row.reads_prompt() || !row.request->score_prompt) continue;
      for (int64_t i = 0; i < row.count && row.done + i + 1 < std::ssize(row.text); ++i) {
        const int64_t at = static_cast<int64_t>(r) * options.chunk + i;
        TokenScore score{row.text[static_cast<size_t>(row.done + i + 1)], log_probs.at(at), {}};
        for (int64_t k = 0; k < row.request->choices; ++k)
          score.best.emplace_back(static_cast<int32_t>(best.at(at * width + k)),
                                  of_best.at(at * width + k));
        // One number for one token, though two sums were rounded.
        for (const auto& [token, log_prob] : score.best) {
          if (token == score.token) score.log_prob = log_prob;
        }
        row.result->prompt_scores.push_back(std::move(score));
      }
    }
  }

  /// Adds the next token of a row that has read all its tokens. Returns false if the text ends.
  bool extend(Row& row, const float* logits, Loc at) {
    const GenerationRequest& request = *row.request;
    if (request.max_tokens == 0) return false;
    const int32_t token = sample_token(logits, vocabulary, row.text, request.sampling, at);
    row.text.push_back(token);
    row.result->tokens.push_back(token);
    if (request.choices > 0)
      row.result->scores.push_back(score_of(logits, model.vocab, token, request.choices));
    row.result->ended = request.on_token && !request.on_token(token);
    return !row.result->ended && std::ssize(row.result->tokens) < request.max_tokens;
  }

  void step(Loc at) {
    const Array logits = run_step(at);
    for (size_t r = 0; r < rows.size(); ++r) {
      Row& row = rows[r];
      row.done += row.count;
      if (!row.request || row.done < std::ssize(row.text)) continue;
      if (!extend(row, logits.data<float>() + static_cast<int64_t>(r) * model.vocab, at)) row = {};
    }
  }
};

Generator::Generator(const nn::TransformerOptions& model, Cluster& cluster,
                     const GeneratorOptions& options, Loc at)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.model = model;
  s.options = options;
  if (options.context == 0) s.options.context = model.length;
  require(options.vocabulary >= 0 && options.vocabulary <= model.vocab,
          "[generate] only tokens below {} are to be chosen, and the model has {} ({})",
          options.vocabulary, model.vocab, where(at));
  s.vocabulary = options.vocabulary == 0 ? model.vocab : options.vocabulary;
  if (options.parameters != DType::float32) s.graph.store_parameters_as(options.parameters);
  nn::DecoderOptions decoding;
  decoding.rows = options.rows;
  decoding.chunk = options.chunk != 0
                       ? options.chunk
                       : std::max(kLeastChunk, kUsualTokens / std::max<int64_t>(1, options.rows));
  decoding.chunk = std::min(decoding.chunk, std::max<int64_t>(1, s.options.context));
  decoding.context = s.options.context;
  decoding.scores = options.choices > 0;
  decoding.choices = std::max<int64_t>(1, options.choices);
  s.options.chunk = decoding.chunk;
  s.decoder = nn::decoder(s.graph, model, decoding);
  CompileOptions compile{
      options.mesh, options.layout, {s.decoder.read, s.decoder.write}, 0, options.threads_per_rank};
  if (decoding.scores) compile.functions.push_back(s.decoder.score);
  compile.device = options.device;
  s.session.emplace(s.graph, cluster, compile, at);
  s.rows.resize(static_cast<size_t>(options.rows));
  s.starts = s.counts = s.token = Array(DType::int32, {"batch"}, {options.rows});
  s.tokens = s.targets = Array(DType::int32, {"batch", "length"}, {options.rows, decoding.chunk});
}

Generator::~Generator() = default;

Session& Generator::session() { return *state_->session; }

std::vector<std::string> Generator::parameters() const {
  std::vector<std::string> names;
  for (const Tensor& p : state_->graph.parameters()) names.push_back(p.name());
  return names;
}

int64_t Generator::context() const { return state_->options.context; }

std::vector<Generation> Generator::run(const std::vector<GenerationRequest>& requests, Loc at) {
  State& s = *state_;
  for (size_t i = 0; i < requests.size(); ++i) s.check(requests[i], i, at);
  s.rows.assign(s.rows.size(), {});
  std::vector<Generation> results(requests.size());
  size_t next = 0;
  for (;;) {
    bool busy = false;
    for (Row& row : s.rows) {
      while (!row.request && next < requests.size()) {
        const size_t i = next++;
        if (State::is_trivial(requests[i])) continue;
        row = {&requests[i], &results[i], requests[i].prompt};
      }
      busy |= row.request != nullptr;
    }
    if (!busy) return results;
    s.step(at);
  }
}

}  // namespace tessera
