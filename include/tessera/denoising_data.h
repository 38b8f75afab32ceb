// Texts that a model repairs: masked tokens (BERT) and corrupted spans (T5), made of the tokens of
// another source.
//   TextOptions windows;
//   windows.length = 568, windows.vocabulary = 32000;
//   auto text = std::make_shared<TextData>("corpus.idx", windows);
//   SpanCorruptionData data(text, {.first_sentinel = 32099, .end = 1, .start = 0});
// What an example holds is a pure function of source, options and the example's number, so the data
// of a step are the same after any restart and under any layout.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/data.h"

namespace tessera {

struct MaskingOptions {
  int32_t mask_token = 0;           ///< [MASK]
  int64_t vocabulary = 0;           ///< of the model, at least 1; random tokens are below it
  std::vector<int32_t> never = {};  ///< tokens that are not chosen: [CLS], [SEP], [PAD]
  double share = 0.15;              ///< of the other tokens that are chosen, each by itself
  double masked = 0.8;  ///< of the chosen ones that become the mask; the rest stay as they are,
  double random = 0.1;  ///< but for these, which become any token
  int64_t rounds = 1;   ///< how often each example of the source comes, each time masked anew
  uint64_t seed = 0;
  std::string source = "inputs";  ///< the source's field of tokens, int32 of one dim
  std::string inputs = "inputs", targets = "targets", weights = "weights";
  std::string segments = "segments";  ///< of the source, where it has them
};

/// Masked language modelling (Devlin et al. 2019). Fields over the dim of the source's tokens:
/// `inputs`, with masks; `targets`, the tokens as they were, both int32; and `weights`, float32: 1
/// where a token was chosen, else 0. Where the source has a float32 field named `weights`, which
/// says of each position whether the token behind it counts, as of TextData and SftData, only
/// tokens that count are chosen: no prompts, no padding, and no first token of an example or of a
/// segment. Behind them come the source's other fields, unchanged, without
/// those of these names. A slice costs only itself.
class MaskedData : public DataSource {
 public:
  /// Throws usage errors for no source, one without the field or with other weights, and options
  /// out of range.
  MaskedData(std::shared_ptr<const DataSource> source, const MaskingOptions& options);

  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t examples() const override { return source_->examples() * options_.rounds; }
  void read(int64_t example, int field, const DataBox& box) const override;
  std::string fingerprint() const override;

 private:
  /// Of each token of a slice: whether the source lets it count.
  std::vector<char> counted(int64_t of_source, int64_t offset, int64_t extent) const;

  std::shared_ptr<const DataSource> source_;
  MaskingOptions options_;
  std::vector<DataField> fields_;
  std::vector<int> from_;                   // of fields_: the field of the source
  int of_weights_ = -1, of_segments_ = -1;  // fields of the source; -1: it has none
};

struct SpanCorruptionOptions {
  /// The first span of an example is replaced by this token, the next one by the token below it,
  /// and so on: vocabulary - 1 for T5. The source has only tokens below those in use.
  int32_t first_sentinel = 0;
  int32_t end = 1;        ///< the last of inputs and of targets
  int32_t start = 0;      ///< the first of the decoder's inputs
  double density = 0.15;  ///< share of a text's tokens that are in spans, rounded to whole tokens
  double mean_span = 3;   ///< tokens of a span, on average; at least 1
  int64_t rounds = 1;     ///< how often each example of the source comes, with other spans
  uint64_t seed = 0;
  std::string source = "inputs";  ///< the source's field of tokens, int32 of one dim
  std::string inputs = "inputs", decoder_inputs = "decoder_inputs", targets = "targets";
  std::string inputs_dim = "length", targets_dim = "target_length";
};

/// Span corruption (Raffel et al. 2020). A text begins outside of a span and ends in one. Inputs
/// are the text with a sentinel in the place of each span; targets are each span behind its
/// sentinel. Every example has the same number of spans, and lengths of texts between them are
/// random, so that all examples have one size. Fields, int32: `inputs` [inputs_dim],
/// `decoder_inputs` and `targets` [targets_dim].
class SpanCorruptionData : public DataSource {
 public:
  /// Throws usage errors for no source, one without the field or with texts of less than 2 tokens,
  /// and options out of range.
  SpanCorruptionData(std::shared_ptr<const DataSource> source,
                     const SpanCorruptionOptions& options);

  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t examples() const override { return source_->examples() * options_.rounds; }
  /// Throws an io error, besides the source's, if the text has a sentinel.
  void read(int64_t example, int field, const DataBox& box) const override;
  std::string fingerprint() const override;

  /// The longest text whose inputs have at most `inputs` tokens, 568 for T5's 512; at most 2^24.
  /// Throws usage errors for options out of range, and if not even 2 tokens fit.
  static int64_t text_length(int64_t inputs, const SpanCorruptionOptions& options);
  /// The numbers of tokens of the inputs and of the targets for a text of `length` tokens, at least
  /// 2. Throws usage errors for options out of range.
  static std::pair<int64_t, int64_t> lengths(int64_t length, const SpanCorruptionOptions& options);

 private:
  std::shared_ptr<const DataSource> source_;
  SpanCorruptionOptions options_;
  std::vector<DataField> fields_;
  int from_ = 0;         // the source's field
  int64_t length_ = 0;   // of a text
  int64_t corrupt_ = 0;  // tokens of a text in spans
  int64_t spans_ = 0;
};

}  // namespace tessera
