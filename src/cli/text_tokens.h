// A language model's tokens as text: those of --tokenizer, or bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace tessera::cli {

class TextTokens {
 public:
  /// Throws usage errors for a tokenizer that does not fit the model's vocabulary, and without
  /// --tokenizer for one that is larger than bytes.
  TextTokens(const TokenizerFlags& args, int64_t vocabulary);
  /// Of a job, whose folder `model` may have a tokenizer of its own.
  TextTokens(const TokenizerFlags& args, const std::string& model, const Job& job,
             int64_t vocabulary);
  /// Tokens are below it.
  int64_t count() const { return count_; }
  /// The tokens of a prompt. Of an empty one: the token that a text begins or ends with, or a new
  /// line. Throws a usage error for a prompt that cannot be expressed.
  std::vector<int32_t> of_prompt(const std::string& prompt) const;
  /// The tokens of a rendered chat template, which has the names of special tokens in it.
  std::vector<int32_t> of_conversation(const std::string& text) const;
  /// The tokenizer's token that ends a text.
  std::optional<int32_t> end() const { return tokenizer_ ? tokenizer_->eos() : std::nullopt; }
  /// That token, or one of those that the folder has as eos_token_id, which may be a byte.
  bool ends_text(int32_t token) const;
  /// How a token is written by itself, special ones too. Not always UTF-8.
  std::string piece_of(int32_t token) const;
  /// The bytes of the text, without special tokens.
  std::string bytes_of(const std::vector<int32_t>& tokens) const;

 private:
  std::optional<Tokenizer> tokenizer_;
  std::vector<int32_t> more_ends_;
  int64_t count_;
};

}  // namespace tessera::cli
