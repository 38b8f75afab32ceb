#include "generate/stepper.h"

#include <algorithm>

#include "base/fail.h"

namespace tessera {

namespace {

constexpr int64_t kLeastChunk = 8, kUsualTokens = 128;  ///< of all rows in a step

}  // namespace

Stepper::Stepper(const nn::TransformerOptions& model, Cluster& cluster,
                 const GeneratorOptions& options, Loc at)
    : model_(model), options_(options) {
  if (options.context == 0) options_.context = model.length;
  TESSERA_REQUIRE(options.vocabulary >= 0 && options.vocabulary <= model.vocab,
                  "[generate] only tokens below {} are to be chosen, and the model has {} ({})",
                  options.vocabulary, model.vocab, where(at));
  TESSERA_REQUIRE(options.beams >= 0 && (options.beams == 0 || options.rows % options.beams == 0),
                  "[generate] {} rows for texts of {} beams each; take a multiple ({})",
                  options.rows, options.beams, where(at));
  TESSERA_REQUIRE(
      options.choices == 0 || model.encoder_layers == 0,
      "[generate] {} choices; the tokens of a prompt that an encoder reads have no scores ({})",
      options.choices, where(at));
  vocabulary_ = options.vocabulary == 0 ? model.vocab : options.vocabulary;
  if (options.parameters != DType::float32) graph_.store_parameters_as(options.parameters);
  nn::DecoderOptions decoding;
  decoding.rows = options.rows;
  decoding.as_trained = options.strict_chunks > 0;
  decoding.chunk = options.chunk != 0
                       ? options.chunk
                       : std::max(kLeastChunk, kUsualTokens / std::max<int64_t>(1, options.rows));
  decoding.chunk = std::min(decoding.chunk, std::max<int64_t>(1, options_.context));
  // The order of a sum over keys depends on their number: that of training.
  decoding.context =
      decoding.as_trained ? std::max(options_.context, model.length) : options_.context;
  decoding.source = model.encoder_layers > 0 ? options_.context : 0;
  decoding.scores = options.choices > 0;
  decoding.choices = std::max<int64_t>(1, options.choices);
  decoding.reorders = options.beams > 0;
  options_.chunk = decoding.chunk;
  decoder_ = nn::decoder(graph_, model, decoding);
  CompileOptions compile{options.mesh, options.layout, {}, 0, options.threads_per_rank};
  for (const nn::DecoderStep& step : decoder_.steps) {
    compile.functions.insert(compile.functions.end(), {step.read, step.write});
    if (decoding.scores) compile.functions.push_back(step.score);
  }
  if (decoding.reorders) compile.functions.push_back(decoder_.reorder);
  if (decoding.source > 0) compile.functions.push_back(decoder_.encode);
  compile.device = options.device;
  compile.strict_chunks = options.strict_chunks;
  session_.emplace(graph_, cluster, compile, at);
  starts_ = counts_ = token_ = Array(DType::int32, {"batch"}, {options.rows});
  tokens_ = targets_ =
      Array(DType::int32, decoder_.tokens.shape().names(), {options.rows, decoding.chunk});
  if (decoding.source > 0)
    source_tokens_ = Array(DType::int32, {"batch", "length"}, {options.rows, decoding.source});
  clear();
}

void Stepper::require_prompt(const std::vector<int32_t>& prompt, int64_t max_tokens, size_t number,
                             Loc at) const {
  const int64_t size = std::ssize(prompt);
  TESSERA_REQUIRE(size >= 1, "[generate] prompt {} has no tokens; give at least one ({})", number,
                  where(at));
  for (int64_t i = 0; i < size; ++i) {
    const int32_t token = prompt[static_cast<size_t>(i)];
    TESSERA_REQUIRE(token >= 0 && token < model_.vocab,
                    "[generate] token {} of prompt {} is {}, and the vocabulary has {} ({})", i,
                    number, token, model_.vocab, where(at));
  }
  TESSERA_REQUIRE(max_tokens >= 0, "[generate] prompt {}: {} new tokens; 0 or more ({})", number,
                  max_tokens, where(at));
  const int64_t begin = model_.encoder_layers > 0 ? 1 : size, context = options_.context;
  TESSERA_REQUIRE(
      size <= context && max_tokens <= context - begin,
      "[generate] prompt {} has {} tokens, and {} new ones are more than the context of {} "
      "has left; shorten the prompt, or ask for at most {} ({})",
      number, size, max_tokens, context, std::max<int64_t>(0, context - begin), where(at));
}

void Stepper::clear() {
  rows_.assign(static_cast<size_t>(options_.rows), {});
  sources_.assign(rows_.size(), {});
}

void Stepper::begin(int64_t r, const std::vector<int32_t>& prompt) {
  if (model_.encoder_layers == 0) {
    row(r) = {prompt};
  } else {
    row(r) = {{model_.start_token}};
    sources_[static_cast<size_t>(r)] = prompt;
  }
}

void Stepper::encode(Loc at) {
  const auto is_new = [](const std::vector<int32_t>& source) { return !source.empty(); };
  if (std::none_of(sources_.begin(), sources_.end(), is_new)) return;
  const int64_t width = source_tokens_.sizes[1];
  auto* const to = source_tokens_.data<int32_t>();
  std::fill(to, to + source_tokens_.elements(), 0);
  for (int64_t r = 0; r < rows(); ++r) {
    std::vector<int32_t>& source = sources_[static_cast<size_t>(r)];
    std::copy(source.begin(), source.end(), to + r * width);
    counts_.data<int32_t>()[r] = static_cast<int32_t>(source.size());
    source.clear();
  }
  session_->feed("sources", source_tokens_);
  session_->feed("source_counts", counts_);
  session_->run("encode", at);
}

/// How many tokens each row takes. Returns true if some take more than one.
bool Stepper::count_tokens() {
  bool reads = false;
  for (Row& row : rows_) {
    row.count = std::min(options_.chunk, std::ssize(row.text) - row.done);
    reads = reads || row.count > 1;
  }
  return reads;
}

void Stepper::feed_chunk(bool scores) {
  for (int64_t r = 0; r < rows(); ++r) {
    const Row& row = rows_[static_cast<size_t>(r)];
    for (int64_t i = 0; i < options_.chunk; ++i) {
      const auto at = static_cast<size_t>(row.done + i);
      const bool has = i < row.count, next = has && at + 1 < row.text.size();
      tokens_.data<int32_t>()[r * options_.chunk + i] = has ? row.text[at] : 0;
      targets_.data<int32_t>()[r * options_.chunk + i] = next ? row.text[at + 1] : 0;
    }
  }
  session_->feed("tokens", tokens_);
  if (scores) session_->feed("targets", targets_);
}

void Stepper::feed_token() {
  for (size_t r = 0; r < rows_.size(); ++r)
    token_.data<int32_t>()[r] =
        rows_[r].count > 0 ? rows_[r].text[static_cast<size_t>(rows_[r].done)] : 0;
  session_->feed("token", token_);
}

Array Stepper::step(bool scores, Loc at) {
  encode(at);
  const bool reads = count_tokens() || scores;
  reads ? feed_chunk(scores) : feed_token();
  int64_t context = 1;
  for (size_t r = 0; r < rows_.size(); ++r) {
    starts_.data<int32_t>()[r] = static_cast<int32_t>(rows_[r].done);
    counts_.data<int32_t>()[r] = static_cast<int32_t>(rows_[r].count);
    rows_[r].done += rows_[r].count;
    context = std::max(context, rows_[r].done);
  }
  step_ = &decoder_.step_for(context);
  session_->feed("starts", starts_);
  session_->feed("counts", counts_);
  session_->run((scores ? step_->score : reads ? step_->read : step_->write).name, at);
  return session_->fetch((reads ? step_->logits : step_->next_logits).name());
}

void Stepper::reorder(const std::vector<int32_t>& parents, Loc at) {
  std::copy(parents.begin(), parents.end(), starts_.data<int32_t>());
  session_->feed("parents", starts_);
  session_->run("reorder", at);
}

}  // namespace tessera
