#include "tokenizer/json_stages.h"

#include "base/fail.h"
#include "tokenizer/bert.h"

namespace tessera {

namespace {

/// GPT-2's pattern, which ByteLevel has built in.
constexpr const char* kByteLevel =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// The expression of {"Regex": ...} or {"String": ...}; `literal`: it was a String.
std::string expression_of(const JsonPart& part, bool& literal) {
  const nlohmann::json& pattern = part.at("pattern");
  literal = pattern.is_object() && pattern.contains("String");
  const char* key = literal ? "String" : "Regex";
  if (!pattern.is_object() || !pattern.contains(key) || !pattern[key].is_string())
    part.fail_damaged("'pattern' is neither a Regex nor a String");
  part.part("pattern").require_keys({key});
  return pattern[key].get<std::string>();
}

SplitBehavior behavior_of(const JsonPart& part) {
  const std::string name = part.text("behavior");
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  part.fail_unknown(fmt::format("the behavior '{}'", name));
}

Metaspace::Prepend prepend_of(const JsonPart& part) {
  const std::string scheme =
      part.text("prepend_scheme", part.flag("add_prefix_space", true) ? "always" : "never");
  if (scheme == "always") return Metaspace::Prepend::always;
  if (scheme == "first") return Metaspace::Prepend::first;
  if (scheme == "never") return Metaspace::Prepend::never;
  part.fail_unknown(fmt::format("the prepend_scheme '{}'", scheme));
}

void add_byte_level(const JsonPart& part, std::vector<std::unique_ptr<Splitter>>& list) {
  part.require_keys({"add_prefix_space", "trim_offsets", "use_regex"});
  if (part.flag("add_prefix_space", true)) list.push_back(std::make_unique<PrefixSpace>());
  if (part.flag("use_regex", true))
    list.push_back(
        std::make_unique<PatternSplitter>(part.name(), kByteLevel, SplitBehavior::isolated));
}

}  // namespace

void add_normalizer(JsonPart part, std::vector<std::unique_ptr<Normalizer>>& list) {
  const std::string type = part.type();
  static const std::pair<const char*, NormalForm> kForms[] = {{"NFC", NormalForm::nfc},
                                                              {"NFD", NormalForm::nfd},
                                                              {"NFKC", NormalForm::nfkc},
                                                              {"NFKD", NormalForm::nfkd}};
  for (const auto& [name, form] : kForms) {
    if (type != name) continue;
    part.require_keys({});
    return list.push_back(std::make_unique<UnicodeNormalizer>(form));
  }
  if (type == "Sequence") {
    part.require_keys({"normalizers"});
    for (const JsonPart& each : part.list("normalizers")) add_normalizer(each, list);
  } else if (type == "BertNormalizer") {
    part.require_keys({"clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
    BertRules rules;
    rules.clean_text = part.flag("clean_text", true);
    rules.spaces_around_ideographs = part.flag("handle_chinese_chars", true);
    rules.lower_case = part.flag("lowercase", true);
    rules.strip_accents = part.flag("strip_accents", rules.lower_case);
    list.push_back(std::make_unique<BertNormalizer>(rules));
  } else if (type == "Prepend") {
    part.require_keys({"prepend"});
    list.push_back(std::make_unique<PrependNormalizer>(part.text("prepend")));
  } else if (type == "Replace") {
    part.require_keys({"pattern", "content"});
    bool literal = false;
    const std::string expression = expression_of(part, literal), content = part.text("content");
    if (expression.empty()) part.fail_damaged("'pattern' is empty");
    if (literal)
      list.push_back(std::make_unique<ReplaceText>(expression, content));
    else
      list.push_back(std::make_unique<ReplaceNormalizer>(part.name(), expression, content));
  } else if (type == "Strip") {
    part.require_keys({"strip_left", "strip_right"});
    list.push_back(std::make_unique<StripNormalizer>(part.flag("strip_left", true),
                                                     part.flag("strip_right", true)));
  } else if (type == "Precompiled") {
    part.require_keys({"precompiled_charsmap"});
    const auto map = base64_decoded(part.text("precompiled_charsmap"));
    if (!map) part.fail_damaged("'precompiled_charsmap' is no base64");
    if (!map->empty()) list.push_back(std::make_unique<CharsMap>(*map));
  } else {
    part.fail_unknown(fmt::format("the type '{}'", type));
  }
}

void add_splitter(JsonPart part, std::vector<std::unique_ptr<Splitter>>& list, bool& over_bytes) {
  const std::string type = part.type();
  if (over_bytes) part.fail_unknown("a place behind ByteLevel");
  const auto add_pattern = [&](const std::string& expression, SplitBehavior behavior,
                               bool invert = false) {
    list.push_back(std::make_unique<PatternSplitter>(part.name(), expression, behavior, invert));
  };
  if (type == "Sequence") {
    part.require_keys({"pretokenizers"});
    for (const JsonPart& each : part.list("pretokenizers")) add_splitter(each, list, over_bytes);
  } else if (type == "ByteLevel") {
    over_bytes = true;
    add_byte_level(part, list);
  } else if (type == "Split") {
    part.require_keys({"pattern", "behavior", "invert"});
    bool literal = false;
    std::string expression = expression_of(part, literal);
    if (literal) expression = quoted_expression(expression);
    add_pattern(expression, behavior_of(part), part.flag("invert", false));
  } else if (type == "Digits") {
    part.require_keys({"individual_digits"});
    add_pattern("\\p{N}", part.flag("individual_digits", false) ? SplitBehavior::isolated
                                                                : SplitBehavior::contiguous);
  } else if (type == "BertPreTokenizer") {
    part.require_keys({});
    list.push_back(std::make_unique<BertSplitter>());
  } else if (type == "WhitespaceSplit") {
    part.require_keys({});
    add_pattern("\\s", SplitBehavior::removed);
  } else if (type == "Metaspace") {
    part.require_keys({"replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
    const std::string mark = part.text("replacement");
    if (mark != kMark) part.fail_unknown(fmt::format("the replacement '{}'", mark));
    list.push_back(std::make_unique<Metaspace>(mark, prepend_of(part), part.flag("split", true)));
  } else {
    part.fail_unknown(fmt::format("the type '{}'", type));
  }
}

void add_decoder(JsonPart part, DecodingRules& rules) {
  const std::string type = part.type();
  if (type == "Sequence") {
    part.require_keys({"decoders"});
    for (const JsonPart& each : part.list("decoders")) add_decoder(each, rules);
  } else if (type == "ByteLevel") {
    part.require_keys({"add_prefix_space", "trim_offsets", "use_regex"});
    rules.bytes_visible = true;
  } else if (type == "Metaspace") {
    part.require_keys({"replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
    rules.marks_are_spaces = true;
    rules.drops_first_space = prepend_of(part) != Metaspace::Prepend::never;
  } else if (type == "Replace") {
    part.require_keys({"pattern", "content"});
    bool literal = false;
    if (expression_of(part, literal) != kMark || !literal || part.text("content") != " ")
      part.fail_unknown("another pattern than the mark of a space");
    rules.marks_are_spaces = true;
  } else if (type == "WordPiece") {
    part.require_keys({"prefix", "cleanup"});
    rules.are_words = rules.drops_first_space = true;
    rules.inner = part.text("prefix", "##");
    rules.cleans_up = part.flag("cleanup", true);
  } else if (type == "ByteFallback") {
    part.require_keys({});
    rules.byte_tokens = true;
  } else if (type == "Strip") {
    part.require_keys({"content", "start", "stop"});
    if (part.text("content") != " " || part.integer("start") > 1 || part.integer("stop") != 0)
      part.fail_unknown("more to strip than one space at the beginning");
    rules.drops_first_space = part.integer("start") == 1;
  } else if (type == "Fuse") {
    part.require_keys({});
  } else {
    part.fail_unknown(fmt::format("the type '{}'", type));
  }
}

namespace {

int32_t template_id(const JsonPart& part, const std::string& name) {
  const nlohmann::json& tokens = part.at("special_tokens");
  if (tokens.is_object() && tokens.contains(name)) {
    const nlohmann::json& token = tokens[name];
    const nlohmann::json ids = token.is_object() ? token.value("ids", nlohmann::json()) : token;
    if (ids.is_array() && ids.size() == 1 && ids[0].is_number_integer())
      return ids[0].get<int32_t>();
  }
  part.fail_damaged(fmt::format("'special_tokens' has no id of '{}'", name));
}

void add_template(const JsonPart& part, Surroundings& around) {
  part.require_keys({"single", "pair", "special_tokens"});
  bool behind = false;
  for (const JsonPart& item : part.list("single")) {
    item.require_keys({"Sequence", "SpecialToken"});
    for (const char* kind : {"Sequence", "SpecialToken"})
      if (item.has(kind)) item.part(kind).require_keys({"id", "type_id"});
    if (item.has("Sequence")) {
      if (std::exchange(behind, true)) item.fail_unknown("a template with the text twice");
    } else if (item.has("SpecialToken")) {
      const std::string id = item.part("SpecialToken").text("id");
      (behind ? around.after : around.before).push_back(template_id(part, id));
    } else {
      item.fail_damaged("an element of 'single' is neither Sequence nor SpecialToken");
    }
  }
}

/// The id in ["</s>", 2].
int32_t pair_id(const JsonPart& part, const char* key) {
  const nlohmann::json& pair = part.at(key);
  if (!pair.is_array() || pair.size() != 2 || !pair[1].is_number_integer())
    part.fail_damaged(fmt::format("'{}' is no token with its id", key));
  return pair[1].get<int32_t>();
}

}  // namespace

void add_post_processor(JsonPart part, Surroundings& around) {
  const std::string type = part.type();
  if (type == "Sequence") {
    part.require_keys({"processors"});
    for (const JsonPart& each : part.list("processors")) add_post_processor(each, around);
  } else if (type == "TemplateProcessing") {
    add_template(part, around);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    part.require_keys({"sep", "cls", "trim_offsets", "add_prefix_space"});
    around.before.push_back(pair_id(part, "cls"));
    around.after.push_back(pair_id(part, "sep"));
  } else if (type == "ByteLevel") {
    part.require_keys({"add_prefix_space", "trim_offsets", "use_regex"});
  } else {
    part.fail_unknown(fmt::format("the type '{}'", type));
  }
}

}  // namespace tessera
