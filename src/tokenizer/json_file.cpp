// tokenizer.json of Hugging Face: the model with its vocabulary, and the stages around it.
#include <cstdio>

#include "base/fail.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/json_stages.h"
#include "tokenizer/unigram.h"
#include "tokenizer/wordpiece.h"

namespace tessera {

namespace {

constexpr size_t kLongestUnigramToken = 4096;  // bytes; the trie is built by recursion over them

int32_t id_of(const JsonPart& part, const nlohmann::json& value, const std::string& token) {
  if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() >= kMostTokens)
    part.fail_damaged(fmt::format("the id of '{}' is no number below {}", token, kMostTokens));
  return value.get<int32_t>();
}

/// Texts of the vocabulary and their ids.
TokenIds vocabulary_of(const JsonPart& model) {
  const nlohmann::json& vocab = model.at("vocab");
  if (!vocab.is_object()) model.fail_damaged("'vocab' is no object");
  TokenIds ids;
  ids.reserve(vocab.size());
  for (const auto& [token, id] : vocab.items()) ids[token] = id_of(model, id, token);
  return ids;
}

/// The two tokens of "a b" or ["a", "b"].
std::pair<std::string, std::string> merge_of(const JsonPart& model, const nlohmann::json& entry,
                                             size_t number) {
  if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string())
    return {entry[0], entry[1]};
  if (entry.is_string()) {
    const auto& text = entry.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != text.npos && text.find(' ', space + 1) == text.npos)
      return {text.substr(0, space), text.substr(space + 1)};
  }
  model.fail_damaged(fmt::format("merge {} is no pair of tokens", number));
}

void add_merges(const JsonPart& model, const TokenIds& ids, MergeTable& merges) {
  const nlohmann::json& list = model.at("merges");
  if (!list.is_array()) model.fail_damaged("'merges' is no list");
  merges.reserve(list.size());
  uint32_t rank = 0;
  for (const nlohmann::json& entry : list) {
    const auto [left, right] = merge_of(model, entry, rank);
    const auto find = [&](const std::string& token) {
      const auto it = ids.find(token);
      if (it == ids.end())
        model.fail_damaged(
            fmt::format("merge {} needs the token '{}', which the vocabulary lacks", rank, token));
      return it->second;
    };
    const int32_t first = find(left), second = find(right);
    merges.add(first, second, rank, find(left + right));
    ++rank;
  }
}

/// Moves the vocabulary from visible characters to bytes. Tokens that are no bytes are added tokens
/// and cannot come out of a merge; they are left out.
TokenIds in_bytes(const TokenIds& ids) {
  TokenIds result;
  result.reserve(ids.size());
  for (const auto& [token, id] : ids) {
    if (const auto bytes = bytes_of_visible(token)) result[*bytes] = id;
  }
  return result;
}

std::unique_ptr<TokenModel> read_bpe(const JsonPart& model, const TokenIds& ids, bool over_bytes) {
  model.require_keys({"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                      "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (model.has("dropout") && model.at("dropout") != 0)
    model.fail_unknown("'dropout', which makes ids random");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.text(key, "").empty())
      model.fail_unknown(fmt::format("'{}' = '{}'", key, model.text(key)));
  }
  BpeRules rules;
  rules.over_bytes = over_bytes;
  rules.whole_first = model.flag("ignore_merges", false);
  rules.byte_fallback = model.flag("byte_fallback", false);
  rules.fuse_unknown = model.flag("fuse_unk", false);
  if (const std::string unknown = model.text("unk_token", ""); !unknown.empty()) {
    const auto it = ids.find(unknown);
    if (it == ids.end())
      model.fail_damaged(fmt::format("the unk_token '{}' is not in the vocabulary", unknown));
    rules.unknown = it->second;
  }
  add_merges(model, ids, rules.merges);
  rules.ids = over_bytes ? in_bytes(ids) : ids;
  return std::make_unique<Bpe>(std::move(rules));
}

std::unique_ptr<TokenModel> read_wordpiece(const JsonPart& model, const TokenIds& ids) {
  model.require_keys(
      {"unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
  WordPieceRules rules;
  const std::string unknown = model.text("unk_token"),
                    prefix = model.text("continuing_subword_prefix", "##");
  const auto it = ids.find(unknown);
  if (it == ids.end())
    model.fail_damaged(fmt::format("the unk_token '{}' is not in the vocabulary", unknown));
  rules.unknown = it->second;
  rules.most_characters = model.integer("max_input_chars_per_word");
  rules.ids = ids;
  for (const auto& [token, id] : ids) {
    if (token.starts_with(prefix)) rules.inner[token.substr(prefix.size())] = id;
  }
  return std::make_unique<WordPiece>(std::move(rules));
}

std::unique_ptr<TokenModel> read_unigram(const JsonPart& model, TokenIds& ids) {
  model.require_keys({"unk_id", "vocab", "byte_fallback"});
  const nlohmann::json& vocab = model.at("vocab");
  if (!vocab.is_array()) model.fail_damaged("'vocab' is no list");
  std::vector<std::pair<std::string, double>> tokens;
  for (const nlohmann::json& entry : vocab) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number() ||
        entry[0].get_ref<const std::string&>().size() > kLongestUnigramToken)
      model.fail_damaged(
          fmt::format("entry {} of 'vocab' is no token of at most {} bytes with its score",
                      tokens.size(), kLongestUnigramToken));
    tokens.emplace_back(entry[0], entry[1]);
    ids[tokens.back().first] = static_cast<int32_t>(tokens.size() - 1);
  }
  int32_t unknown = -1;
  if (model.has("unk_id")) {
    const int64_t id = model.integer("unk_id");
    if (id < 0 || id >= std::ssize(tokens))
      model.fail_damaged(fmt::format("unk_id is {}, beyond {} tokens", id, tokens.size()));
    unknown = static_cast<int32_t>(id);
  }
  return std::make_unique<Unigram>(tokens, unknown, model.flag("byte_fallback", false));
}

/// Those of the file, and of the files beside it.
std::vector<AddedToken> added_tokens(const JsonPart& file, const TokenIds& ids,
                                     const TokenizerSettings& settings) {
  std::vector<AddedToken> added;
  const auto add = [&](AddedToken token) {
    add_token(std::move(token), added, file.path(), std::ssize(ids), [&](const std::string& text) {
      const auto it = ids.find(text);
      return it == ids.end() ? std::nullopt : std::optional(it->second);
    });
  };
  for (const JsonPart& part :
       file.has("added_tokens") ? file.list("added_tokens") : std::vector<JsonPart>()) {
    part.require_keys(
        {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.text = part.text("content");
    token.id = id_of(part, part.at("id"), token.text);
    token.special = part.flag("special", false);
    token.strips_left = part.flag("lstrip", false);
    token.strips_right = part.flag("rstrip", false);
    if (part.flag("single_word", false))
      part.fail_unknown(fmt::format("the added token '{}' with single_word", token.text));
    token.normalized = part.flag("normalized", !token.special);
    token.where = fmt::format("'{}': added_tokens", file.path());
    add(std::move(token));
  }
  for (const AddedToken& token : settings.added) add(token);
  return added;
}

/// A token of WordPiece as text, with a space in front if it begins a word.
std::string word_of(const std::string& token, const DecodingRules& rules) {
  if (!rules.inner.empty() && token.starts_with(rules.inner))
    return token.substr(rules.inner.size());
  // Each token for itself, as tokenizers does: "'" has its space, and "'s" or "n't" has not.
  static constexpr std::string_view kAttached[] = {".",  "?",  "!",   ",",  "n't",
                                                   "'m", "'s", "'ve", "'re"};
  for (const std::string_view end : kAttached) {
    if (rules.cleans_up && token.starts_with(end)) return token;
  }
  return " " + token;
}

/// What a token of the vocabulary decodes to.
std::string decoded(const std::string& token, const DecodingRules& rules) {
  if (rules.are_words) return word_of(token, rules);
  if (rules.bytes_visible) return bytes_of_visible(token).value_or(token);
  unsigned byte = 0;
  char end = 0;
  if (rules.byte_tokens && token.size() == 6 &&
      std::sscanf(token.c_str(), "<0x%2X%c", &byte, &end) == 2 && end == '>')
    return std::string(1, static_cast<char>(byte));
  return rules.marks_are_spaces ? replaced(token, kMark, " ") : token;
}

}  // namespace

LoadedTokenizer load_tokenizer_json(const std::string& path, const nlohmann::json& json,
                                    const TokenizerSettings& settings) {
  const JsonPart file(path, "the file", json);
  file.require_keys({"version", "truncation", "padding", "added_tokens", "normalizer",
                     "pre_tokenizer", "post_processor", "decoder", "model"});
  PipelineStages stages;
  LoadedTokenizer loaded;
  bool over_bytes = false;
  if (file.has("normalizer")) add_normalizer(file.part("normalizer"), stages.normalizers);
  if (file.has("pre_tokenizer"))
    add_splitter(file.part("pre_tokenizer"), stages.splitters, over_bytes);
  DecodingRules rules;
  if (file.has("decoder")) add_decoder(file.part("decoder"), rules);
  JsonPart model = file.part("model");
  // Old files leave the type out.
  const char* const untyped = model.has("merges")                     ? "BPE"
                              : model.has("max_input_chars_per_word") ? "WordPiece"
                                                                      : "";
  const std::string type = model.has("type") ? model.type() : untyped;
  TokenIds ids;
  if (type == "BPE") {
    ids = vocabulary_of(model);
    stages.model = read_bpe(model, ids, over_bytes);
    loaded.kind = over_bytes ? "byte-level BPE" : "BPE";
  } else if (type == "Unigram") {
    if (over_bytes) model.fail_unknown("a pre-tokenizer ByteLevel");
    stages.model = read_unigram(model, ids);
    loaded.kind = "Unigram";
  } else if (type == "WordPiece") {
    if (over_bytes) model.fail_unknown("a pre-tokenizer ByteLevel");
    ids = vocabulary_of(model);
    stages.model = read_wordpiece(model, ids);
    loaded.kind = "WordPiece";
  } else {
    model.fail_unknown(fmt::format("the type '{}' (known: BPE, Unigram, WordPiece)", type));
  }
  for (const auto& [token, id] : ids) loaded.set(id, decoded(token, rules));
  MatchSpace space;
  std::vector<AddedToken> raw, normalized;
  for (AddedToken& token : added_tokens(file, ids, settings)) {
    const std::string bytes = rules.bytes_visible ? token.text : decoded(token.text, rules);
    token.special ? loaded.set_special(token.id, bytes, token.text) : loaded.set(token.id, bytes);
    for (const auto& normalizer : stages.normalizers)
      if (token.normalized) token.text = normalizer->normalize(token.text, space);
    (token.normalized ? normalized : raw).push_back(std::move(token));
  }
  Surroundings around;
  if (file.has("post_processor")) add_post_processor(file.part("post_processor"), around);
  loaded.before = std::move(around.before);
  loaded.after = std::move(around.after);
  loaded.drops_first_space = rules.drops_first_space;
  stages.added = AddedTokens(std::move(raw));
  stages.added_normalized = AddedTokens(std::move(normalized));
  loaded.encoder = std::make_unique<TokenPipeline>(std::move(stages));
  return loaded;
}

}  // namespace tessera
