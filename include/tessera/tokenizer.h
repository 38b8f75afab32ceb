// Tokenizers: text to token ids and back, with the ids of the library that a vocabulary comes from.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// What a tiktoken file does not say itself. Other files say both, and giving them is an error.
struct TokenizerOptions {
  /// How text is cut into pieces: gpt2, cl100k, o200k, llama3, llama4, qwen2, or a regular
  /// expression. A name brings its special tokens with it.
  std::string pattern = {};
  /// Special tokens besides those of the pattern's name; ids follow the largest one.
  std::vector<std::string> special = {};
};

struct EncodeOptions {
  /// Text that is written like a special token, such as <|endoftext|>, becomes this token. False:
  /// it is text like all other, as it always is for SentencePiece models and tekken.json.
  bool special_in_text = true;
  /// Adds the tokens that a model expects around a text: those of the file's post-processor; for a
  /// SentencePiece model and tekken.json the token of the beginning.
  bool add_special = false;
};

/// A vocabulary with its rules. Constant after load(); several threads may use it at once.
class Tokenizer {
 public:
  /// Reads a file, or the tokenizer of a model's folder:
  /// - tokenizer.json of Hugging Face: byte-level BPE, BPE over characters with byte fallback,
  ///   Unigram, and BERT's WordPiece. tokenizer_config.json beside it names the special tokens.
  /// - tekken.json of Mistral.
  /// - a tiktoken file (a token in base64 and its rank on each line), which needs options.pattern.
  /// - a SentencePiece model.
  /// Throws io errors for a missing or damaged file, usage errors for bad options, and an
  /// unsupported error that names a part of the file that is not known, or the package that this
  /// build lacks (PCRE2, SentencePiece).
  static Tokenizer load(const std::string& path, const TokenizerOptions& options = {});
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// The ids of a text. Bytes that are not UTF-8 are read as U+FFFD. Where a vocabulary lacks a
  /// byte or character, it becomes the unknown token; BPE without one leaves it out, as its own
  /// library does, and Unigram without one throws a usage error.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// The same, appended to `ids`.
  void encode_to(std::string_view text, std::vector<int32_t>& ids,
                 const EncodeOptions& options = {}) const;
  /// The bytes of a text. They begin with the bytes of every shorter list that begins `ids`, and
  /// may end within a character. Special tokens are written as their names, or left out. Throws a
  /// usage error for an id outside of the vocabulary.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  /// Ids are below it.
  int64_t vocab_size() const;
  /// Tokens of the beginning and end of a text, and of padding, where the tokenizer has them. From
  /// tokenizer_config.json, or the model; else by the usual names (<|begin_of_text|>, <s>, <bos>;
  /// <|endoftext|>, <|end_of_text|>, </s>, <eos>; <pad>).
  std::optional<int32_t> bos() const;
  std::optional<int32_t> eos() const;
  std::optional<int32_t> pad() const;
  /// The id of a special token, by name.
  std::optional<int32_t> special(std::string_view name) const;
  /// "byte-level BPE, 49152 tokens"
  std::string description() const;
  /// Says which vocabulary and rules these are, wherever the files lie.
  std::string fingerprint() const;

 private:
  struct Parts;
  explicit Tokenizer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace tessera
