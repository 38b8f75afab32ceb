// The steps of a decoder whose rows are texts: what all ways of choosing tokens share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/generate.h"

namespace tessera {

/// Throws a usage error that begins with `whose` unless all logits are numbers or -infinity, and
/// one at least is finite: no choice among others means anything.
void require_numbers(const float* logits, int64_t vocabulary, const std::string& whose, Loc at);
/// "[generate] a logit of prompt 2 for place 17"
std::string logit_of(size_t prompt, size_t place);

class Stepper {
 public:
  /// A text in a row of the batch.
  struct Row {
    std::vector<int32_t> text;  ///< what the decoder reads; none: the row is free
    int64_t done = 0;           ///< tokens that the cache has
    int64_t count = 0;          ///< tokens of the last step
    bool is_read() const { return done == std::ssize(text); }
  };

  /// As Generator.
  Stepper(const nn::TransformerOptions& model, Cluster& cluster, const GeneratorOptions& options,
          Loc at);

  const nn::TransformerOptions& model() const { return model_; }
  /// As given, with values for what was left open.
  const GeneratorOptions& options() const { return options_; }
  int64_t vocabulary() const { return vocabulary_; }
  Session& session() { return *session_; }
  Graph& graph() { return graph_; }
  /// What the last step() used.
  const nn::DecoderStep& last_step() const { return *step_; }

  /// Throws the usage errors of a prompt that cannot be written on by `max_tokens`.
  void require_prompt(const std::vector<int32_t>& prompt, int64_t max_tokens, size_t number,
                      Loc at) const;

  Row& row(int64_t r) { return rows_[static_cast<size_t>(r)]; }
  int64_t rows() const { return std::ssize(rows_); }
  /// Frees all rows.
  void clear();
  /// Begins a text: with the prompt, or with the start token if an encoder reads the prompt.
  void begin(int64_t row, const std::vector<int32_t>& prompt);
  /// Reads up to a chunk of the tokens that each row has more than its cache, and returns the
  /// logits [rows, vocab] behind the last of them. `scores`: the decoder's scores are made, too.
  Array step(bool scores, Loc at);
  /// Row r goes on with the tokens that row parents[r] has in the cache.
  void reorder(const std::vector<int32_t>& parents, Loc at);

 private:
  void encode(Loc at);
  bool count_tokens();
  void feed_chunk(bool scores);
  void feed_token();

  Graph graph_;
  nn::Decoder decoder_;
  const nn::DecoderStep* step_ = nullptr;  ///< of the last step
  std::optional<Session> session_;
  nn::TransformerOptions model_;
  GeneratorOptions options_;
  int64_t vocabulary_ = 0;
  std::vector<Row> rows_;
  std::vector<std::vector<int32_t>> sources_;  // of the rows that an encoder has not read yet
  Array tokens_, targets_, token_, starts_, counts_, source_tokens_;
};

}  // namespace tessera
