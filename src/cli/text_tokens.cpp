#include "cli/text_tokens.h"

#include "base/fail.h"

namespace tessera::cli {

namespace {

constexpr int64_t kBytes = 256;

/// Without --tokenizer a folder has its own tokenizer, if its tokens are no bytes.
TokenizerFlags with_tokenizer(TokenizerFlags args, const std::string& model, const Job& job,
                              int64_t vocabulary) {
  if (args.tokenizer.empty() && job.folder && vocabulary > kBytes) args.tokenizer = model;
  return args;
}

}  // namespace

TextTokens::TextTokens(const TokenizerFlags& args, const std::string& model, const Job& job,
                       int64_t vocabulary)
    : TextTokens(with_tokenizer(args, model, job, vocabulary), vocabulary) {}

TextTokens::TextTokens(const TokenizerFlags& args, int64_t vocabulary) : count_(vocabulary) {
  if (args.tokenizer.empty()) {
    TESSERA_REQUIRE(args.pattern.empty() && args.special.empty(),
                    "--tokenizer-pattern and --special-token need --tokenizer PATH");
    TESSERA_REQUIRE(vocabulary <= kBytes,
                    "the model has a vocabulary of {}, so its tokens are no bytes; say which with "
                    "--tokenizer PATH",
                    vocabulary);
    return;
  }
  tokenizer_.emplace(load_tokenizer(args));
  TESSERA_REQUIRE(
      tokenizer_->vocab_size() <= vocabulary,
      "'{}' ({}) does not fit the model, whose vocabulary has {}; give the tokenizer that its "
      "corpus was made with",
      args.tokenizer, tokenizer_->description(), vocabulary);
  count_ = tokenizer_->vocab_size();
}

std::vector<int32_t> TextTokens::of_prompt(const std::string& prompt) const {
  std::vector<int32_t> tokens;
  const std::string text = prompt.empty() ? "\n" : prompt;
  if (!tokenizer_) {
    for (const unsigned char c : text) {
      TESSERA_REQUIRE(c < count_, "the prompt has byte {}, beyond the model's vocabulary of {}",
                      int{c}, count_);
      tokens.push_back(c);
    }
    return tokens;
  }
  const auto start = tokenizer_->bos() ? tokenizer_->bos() : tokenizer_->eos();
  if (prompt.empty() && start) return {*start};
  tokens = tokenizer_->encode(text);
  TESSERA_REQUIRE(!tokens.empty(), "the prompt '{}' has no tokens in '{}'", prompt,
                  tokenizer_->description());
  return tokens;
}

std::string TextTokens::piece_of(int32_t token) const {
  if (tokenizer_) return token < count_ ? tokenizer_->decode(std::vector{token}, false) : "";
  return std::string(1, static_cast<char>(token));
}

std::string TextTokens::bytes_of(const std::vector<int32_t>& tokens) const {
  if (tokenizer_) return tokenizer_->decode(tokens, true);
  return std::string(tokens.begin(), tokens.end());
}

}  // namespace tessera::cli
