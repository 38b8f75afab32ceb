// tekken.json: ranks of tiktoken behind a number of special tokens, of which older files name none.
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "tokenizer/ranks.h"

namespace tessera {

namespace {

/// The first special tokens of files that do not name them.
constexpr const char* kOldSpecials[] = {"<unk>",
                                        "<s>",
                                        "</s>",
                                        "[INST]",
                                        "[/INST]",
                                        "[AVAILABLE_TOOLS]",
                                        "[/AVAILABLE_TOOLS]",
                                        "[TOOL_RESULTS]",
                                        "[/TOOL_RESULTS]",
                                        "[TOOL_CALLS]",
                                        "[IMG]",
                                        "<pad>",
                                        "[IMG_BREAK]",
                                        "[IMG_END]",
                                        "[PREFIX]",
                                        "[MIDDLE]",
                                        "[SUFFIX]",
                                        "[SYSTEM_PROMPT]",
                                        "[/SYSTEM_PROMPT]",
                                        "[TOOL_CONTENT]"};

int64_t number_of(const nlohmann::json& object, const char* key, const std::string& path) {
  const auto it = object.find(key);
  if (it != object.end() && it->is_number_integer()) {
    const auto value = it->get<int64_t>();
    if (value >= 0 && value < kMostTokens) return value;
  }
  fail(ErrorKind::io,
       "[tokenizer] '{}': {} is no number below {}; the file is damaged, or no tekken.json", path,
       key, kMostTokens);
}

}  // namespace

LoadedTokenizer load_tekken(const std::string& path, const nlohmann::json& file) {
  const nlohmann::json& config = file.at("config");
  const int64_t size = number_of(config, "default_vocab_size", path);
  const int64_t specials = number_of(config, "default_num_special_tokens", path);
  const auto pattern = config.find("pattern");
  const auto vocab = file.find("vocab");
  if (pattern == config.end() || !pattern->is_string() || vocab == file.end() ||
      !vocab->is_array() || specials > size)
    fail(ErrorKind::io, "[tokenizer] '{}' has no config.pattern or no vocab; get the file again",
         path);
  std::vector<std::pair<std::string, int32_t>> ranks;
  for (const nlohmann::json& entry : *vocab) {
    const int64_t rank = entry.is_object() ? number_of(entry, "rank", path) : -1;
    const auto it = entry.is_object() ? entry.find("token_bytes") : vocab->end();
    std::optional<std::string> bytes;
    if (entry.is_object() && it != entry.end() && it->is_string())
      bytes = base64_decoded(it->get_ref<const std::string&>());
    if (!bytes || bytes->empty())
      fail(ErrorKind::io,
           "[tokenizer] '{}': entry {} of vocab has no token_bytes; get the file again", path,
           ranks.size());
    if (rank < size - specials) ranks.emplace_back(*bytes, static_cast<int32_t>(rank));
  }
  LoadedTokenizer loaded;
  loaded.kind = "tekken BPE";
  for (int64_t i = 0; i < specials; ++i) {
    const bool is_named = !file.contains("special_tokens") && i < std::ssize(kOldSpecials);
    const std::string name = is_named ? kOldSpecials[i] : fmt::format("<SPECIAL_{}>", i);
    loaded.set_special(static_cast<int32_t>(i), name, name);
  }
  if (const auto named = file.find("special_tokens"); named != file.end() && named->is_array()) {
    for (const nlohmann::json& entry : *named) {
      if (entry.is_object() && entry.contains("token_str") && entry["token_str"].is_string())
        loaded.set_special(static_cast<int32_t>(number_of(entry, "rank", path)), entry["token_str"],
                           entry["token_str"]);
    }
  }
  const auto first = static_cast<int32_t>(specials);
  for (const auto& [bytes, rank] : ranks) loaded.set(first + rank, bytes);
  loaded.encoder = std::make_unique<TokenPipeline>(
      stages_of_ranks(path, ranks, first, pattern->get_ref<const std::string&>()));
  if (const auto it = loaded.specials.find("<s>"); it != loaded.specials.end())
    loaded.before = {it->second};
  return loaded;
}

}  // namespace tessera
