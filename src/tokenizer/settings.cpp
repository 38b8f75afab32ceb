#include "tokenizer/settings.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/keyed_json.h"

namespace tessera {

namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

/// A token: its text, or an object with it.
AddedToken token_of(const KeyedJson& file, const std::string& key, const Json& value) {
  AddedToken token;
  token.where = fmt::format("'{}': {}", file.file(), key);
  token.special = true;
  if (value.is_string()) {
    token.text = value.get<std::string>();
    return token;
  }
  KeyedJson object(file.file(), value, key, KeyedJson::kTokenizer);
  token.text = object.text("content");
  token.special = object.flag("special", true);
  token.strips_left = object.flag("lstrip", false);
  token.strips_right = object.flag("rstrip", false);
  token.normalized = object.flag("normalized", !token.special);
  object.require_value("single_word", false);
  object.ignore({"__type"});
  object.require_all_read();
  return token;
}

/// Reads tokens with names ("eos_token") and lists of others.
void read_tokens(KeyedJson& config, TokenizerSettings& settings) {
  for (const std::string& key : config.keys()) {
    const bool is_list = key == "additional_special_tokens" || key == "extra_special_tokens";
    if (!is_list && (!key.ends_with("_token") || key.starts_with("add_"))) continue;
    const Json value = config.value(key);
    if (value.is_null() || value == "") continue;
    if (!is_list) {
      settings.added.push_back(token_of(config, key, value));
      settings.named[key] = settings.added.back().text;
      continue;
    }
    if (!value.is_structured()) config.refuse(key, "it is a list of tokens");
    for (const auto& [name, token] : value.items()) {
      settings.added.push_back(token_of(config, key, token));
      if (value.is_object()) settings.named[name] = settings.added.back().text;
    }
  }
}

/// "added_tokens_decoder": tokens by their ids.
void read_decoder(KeyedJson& config, TokenizerSettings& settings) {
  const std::string key = "added_tokens_decoder";
  std::vector<AddedToken> tokens;
  KeyedJson decoder = config.object(key);
  for (const std::string& id : decoder.keys()) {
    tokens.push_back(token_of(config, key + "." + id, decoder.value(id)));
    const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), tokens.back().id);
    if (error != std::errc() || *end != 0) decoder.refuse(id, "its key is an id");
  }
  std::ranges::sort(tokens, {}, &AddedToken::id);
  settings.added.insert(settings.added.begin(), tokens.begin(), tokens.end());
}

/// added_tokens.json: ids of tokens by their texts.
void read_added(KeyedJson file, TokenizerSettings& settings) {
  std::vector<AddedToken> tokens;
  for (const std::string& text : file.keys()) {
    const auto is_it = [&](const AddedToken& t) { return t.text == text; };
    AddedToken token;
    token.where = fmt::format("'{}'", file.file());
    token.text = text;
    token.id = static_cast<int32_t>(file.whole(text, {}, 0, INT32_MAX));
    token.special = std::ranges::any_of(settings.added, is_it);
    token.normalized = !token.special;
    tokens.push_back(std::move(token));
  }
  std::ranges::sort(tokens, {}, &AddedToken::id);
  settings.added.insert(settings.added.begin(), tokens.begin(), tokens.end());
}

/// The template of a configuration: a text, or the one called "default" of several.
std::string template_of(KeyedJson& config) {
  const Json value = config.value("chat_template");
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) config.refuse("chat_template", "it is a text, or a list of templates");
  for (const Json& each : value) {
    if (each.is_object() && each.value("name", Json()) == "default")
      return each.value("template", std::string());
  }
  return "";
}

/// What only a model of SentencePiece leaves open.
void read_sentencepiece(KeyedJson& config, TokenizerSettings& settings) {
  constexpr std::string_view kFast = "Fast";
  std::string type = config.text("tokenizer_class", "LlamaTokenizer");
  if (type.ends_with(kFast)) type.resize(type.size() - kFast.size());
  if (type != "LlamaTokenizer" && type != "GemmaTokenizer")
    config.refuse("tokenizer_class",
                  "of a tokenizer.model Tessera knows the ids of LlamaTokenizer and "
                  "GemmaTokenizer; save a tokenizer.json with transformers");
  config.allow_null({"add_prefix_space", "legacy"});
  settings.prefix = config.flag("add_prefix_space", true) && type == "LlamaTokenizer";
  settings.prefix_behind_tokens = settings.prefix && config.flag("legacy", false);
  config.require_value("sp_model_kwargs", Json::object());
  if (!settings.is_there) return;
  const auto adds = [&](const char* key) {
    config.allow_null({key});
    return config.flag(key, false);
  };
  settings.adds_bos = adds("add_bos_token");
  settings.adds_eos = adds("add_eos_token");
}

}  // namespace

TokenizerSettings read_settings(const std::string& file) {
  TokenizerSettings settings;
  const fs::path folder = fs::path(file).parent_path();
  const std::string kind = fs::path(file).filename().string();
  settings.path = (folder / "tokenizer_config.json").string();
  if (kind != "tokenizer.json" && kind != "tokenizer.model") return settings;
  const auto read = [&](const char* name) {
    return KeyedJson::read((folder / name).string(), KeyedJson::kTokenizer);
  };
  KeyedJson config = read("tokenizer_config.json");
  config.set_kind(kind);
  read_tokens(config, settings);
  if (config.has("added_tokens_decoder")) {
    read_decoder(config, settings);
  } else {
    KeyedJson map = read("special_tokens_map.json");
    read_tokens(map, settings);
    map.require_all_read();
    read_added(read("added_tokens.json"), settings);
  }
  settings.is_there = !config.keys().empty() || !settings.added.empty();
  if (kind == "tokenizer.model") read_sentencepiece(config, settings);
  settings.chat_template = template_of(config);
  config.ignore({"added_tokens_decoder"});
  config.require_value("split_special_tokens", false);
  config.require_value("fix_mistral_regex", false);
  config.require_all_read();
  return settings;
}

void add_token(AddedToken token, std::vector<AddedToken>& all, const std::string& file,
               int64_t size,
               const std::function<std::optional<int32_t>(const std::string&)>& id_of) {
  const auto same = std::ranges::find(all, token.text, &AddedToken::text);
  if (same != all.end() && token.id < 0) {
    same->special = same->special || token.special;
    return;
  }
  std::optional<int32_t> id = same == all.end() ? id_of(token.text) : same->id;
  if (!id && token.id < 0)
    fail(ErrorKind::io, "[tokenizer] {} is '{}', which is no token of '{}'; add it there",
         token.where, token.text, file);
  if (!id) {
    int64_t next = size;
    for (const AddedToken& each : all) next = std::max<int64_t>(next, each.id + 1);
    id = static_cast<int32_t>(next);
  }
  if (token.id >= 0 && token.id != *id)
    fail(ErrorKind::io,
         "[tokenizer] {}: the token '{}' has the id {}, but '{}' and the tokens before it make it "
         "{}, as transformers numbers them; give it that id",
         token.where, token.text, token.id, file, *id);
  token.id = *id;
  if (same == all.end())
    all.push_back(std::move(token));
  else
    *same = std::move(token);
}

}  // namespace tessera
