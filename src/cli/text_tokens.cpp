#include "cli/text_tokens.h"

#include <algorithm>
#include <filesystem>

#include "base/fail.h"
#include "base/files.h"
#include "base/keyed_json.h"

namespace tessera::cli {

namespace {

constexpr int64_t kBytes = 256;

/// Without --tokenizer a folder has its own tokenizer, if its tokens are no bytes.
TokenizerFlags with_tokenizer(TokenizerFlags args, const std::string& model, const Job& job,
                              int64_t vocabulary) {
  if (args.tokenizer.empty() && job.folder && vocabulary > kBytes) args.tokenizer = model;
  return args;
}

/// The tokens that end a text, by generation_config.json or, without that, by config.json: a
/// number, or a list of numbers.
std::vector<int32_t> ends_of_folder(const std::string& folder, int64_t vocabulary) {
  const auto in = [&](const char* name) { return (std::filesystem::path(folder) / name).string(); };
  const bool has_own = is_there(in("generation_config.json"));
  KeyedJson config = KeyedJson::read(in(has_own ? "generation_config.json" : "config.json"),
                                     KeyedJson::kGeneration);
  const nlohmann::json value = config.value("eos_token_id");
  std::vector<int32_t> ends;
  for (const nlohmann::json& end : value.is_array()  ? value
                                   : value.is_null() ? nlohmann::json::array()
                                                     : nlohmann::json{value}) {
    if (!end.is_number_integer() || end < 0 || end >= vocabulary)
      config.refuse("eos_token_id",
                    fmt::format("the tokens of the model are from 0 to {}", vocabulary - 1));
    ends.push_back(end.get<int32_t>());
  }
  if (!has_own) return ends;
  for (const char* key :
       {"bad_words_ids", "begin_suppress_tokens", "constraints", "dola_layers",
        "exponential_decay_length_penalty", "force_words_ids", "forced_bos_token_id",
        "forced_decoder_ids", "forced_eos_token_id", "guidance_scale", "sequence_bias",
        "stop_strings", "suppress_tokens", "watermarking_config"})
    config.require_value(key, nullptr);
  for (const char* key : {"no_repeat_ngram_size", "encoder_no_repeat_ngram_size"})
    config.require_value(key, 0);
  for (const char* key : {"remove_invalid_values", "renormalize_logits"})
    config.require_value(key, false);
  config.require_value("encoder_repetition_penalty", 1.0);
  config.require_all_read();
  return ends;
}

}  // namespace

TextTokens::TextTokens(const TokenizerFlags& args, const std::string& model, const Job& job,
                       int64_t vocabulary)
    : TextTokens(with_tokenizer(args, model, job, vocabulary), vocabulary) {
  if (job.folder) more_ends_ = ends_of_folder(model, vocabulary);
}

bool TextTokens::ends_text(int32_t token) const {
  return end() == token ||
         std::find(more_ends_.begin(), more_ends_.end(), token) != more_ends_.end();
}

std::vector<int32_t> TextTokens::of_conversation(const std::string& text) const {
  if (!tokenizer_) return of_prompt(text);
  return tokenizer_->encode(text, {.special_in_text = true});
}

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
