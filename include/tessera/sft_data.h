// Supervised fine-tuning: prompts with their answers as examples of tokens, of which only the
// answers count.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/data.h"
#include "tessera/tokenizer.h"

namespace tessera {

struct SftOptions {
  int64_t length = 64;             ///< tokens of one example, which holds as many samples as fit
  double first = 0.0, last = 1.0;  ///< the part of the samples to use, as in TextOptions
  int64_t vocabulary = 0;          ///< the model's; 0: that of the tokenizer
  /// A sample that is longer than an example is an error, is left out, or loses its end. If its
  /// prompt alone fills the example, truncating leaves it out.
  enum class TooLong { error, skip, truncate };
  TooLong too_long = TooLong::error;
  std::string inputs = "inputs", targets = "targets", segments = "segments",
              positions = "positions", weights = "weights", dim = "length";
};

/// The samples of a jsonl file, held in memory as tokens. A line is a sample, in one of two forms:
/// - {"prompt": TEXT, "completion": TEXT}: the tokens of the prompt, those of the completion and
///   the tokenizer's end-of-text token; the last two are the answer. The tokenizer's token for the
///   beginning of a text comes first if its own library adds it.
/// - {"messages": [{"role": ROLE, "content": TEXT}, ...]}: the text that the chat template of the
///   tokenizer makes of it; every message of the assistant is an answer, with what the template
///   ends it with.
/// Other keys of a line are errors, but those that say where it comes from. Samples are packed into
/// examples in their order: fields inputs, targets, segments and positions (int32) and weights
/// (float32), all [length], as of TextData. The weight of a target is 1 if it belongs to an answer,
/// else 0. What is left of an example is segment 0. So what an example holds depends on file,
/// tokenizer and options only.
class SftData : public DataSource {
 public:
  /// `tokenizer`: a tokenizer's file, or a folder with one and with its tokenizer_config.json.
  /// Throws io errors that name file and line: no JSON, neither form, an empty answer, a sample
  /// that is too long; no samples; errors of the tokenizer; usage errors for bad options and a
  /// tokenizer that does not fit the vocabulary; an unsupported error for a chat template that is
  /// not understood (chat_template.h).
  SftData(const std::string& path, const std::string& tokenizer, const SftOptions& options = {});

  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t examples() const override { return std::ssize(examples_); }
  void read(int64_t example, int field, const DataBox& box) const override;
  std::string fingerprint() const override;  ///< of all tokens, with the options
  /// That no answer ends with a special token, so that a model does not learn where to end.
  std::string warning() const override { return warning_; }

  int64_t samples() const { return std::ssize(samples_); }  ///< in use
  int64_t left_out() const { return left_out_; }            ///< that were too long
  /// The sample (from 0, of those in use) that position `at` of an example belongs to; -1: none.
  int64_t sample_at(int64_t example, int64_t at) const;

 private:
  struct Sample {
    std::vector<int32_t> tokens;
    std::vector<char> counts;  ///< of each token: whether it is part of an answer
    int64_t positions() const { return std::ssize(tokens) - 1; }
  };
  void add(Sample sample, const std::string& where);
  void pack();

  SftOptions options_;
  std::vector<DataField> fields_;
  std::vector<Sample> samples_;
  struct Example {
    int64_t first_sample = 0, samples = 0;
  };
  std::vector<Example> examples_;
  int64_t left_out_ = 0;
  std::string fingerprint_, warning_;
};

struct PairOptions {
  int64_t length = 64, target_length = 64;  ///< tokens of prompts and of answers of one example
  double first = 0.0, last = 1.0;           ///< as in SftOptions
  int64_t vocabulary = 0;                   ///< as in SftOptions
  int32_t start = 0, end = 1;  ///< tokens in front of an answer, and behind prompts and answers
  /// As in SftOptions. What is cut from a prompt is in front of its end.
  SftOptions::TooLong too_long = SftOptions::TooLong::error;
};

/// The samples of a jsonl file for a model with an encoder, which reads the prompts, held in memory
/// as tokens: {"prompt": TEXT, "completion": TEXT}. They are packed in their order: fields inputs
/// and segments [length], decoder_inputs, targets and decoder_segments [target_length], all int32,
/// and weights, float32 [target_length], 1 for each token of an answer and its end. What is left of
/// an example is segment 0. So what an example holds depends on file, tokenizer and options only.
class PairData : public DataSource {
 public:
  /// Throws as SftData; a sample of messages is an io error.
  PairData(const std::string& path, const std::string& tokenizer, const PairOptions& options);

  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t examples() const override { return std::ssize(examples_); }
  void read(int64_t example, int field, const DataBox& box) const override;
  std::string fingerprint() const override;  ///< of all tokens, with the options

  int64_t samples() const { return std::ssize(samples_); }  ///< in use
  int64_t left_out() const { return left_out_; }            ///< that were too long

 private:
  struct Sample {
    std::vector<int32_t> prompt, answer;  ///< with their ends
  };
  struct Example {
    int64_t first_sample = 0, samples = 0;
  };
  bool make_fit(Sample& sample, const std::string& where) const;
  void pack();

  PairOptions options_;
  std::vector<DataField> fields_;
  std::vector<Sample> samples_;
  std::vector<Example> examples_;
  int64_t left_out_ = 0;
  std::string fingerprint_;
};

}  // namespace tessera
