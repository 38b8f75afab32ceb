#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/fail.h"
#include "base/files.h"
#include "base/toml.h"
#include "base/toml_text.h"
#include "cli/commands.h"
#include "tessera/cli.h"

namespace tessera {

namespace {

/// A key that was renamed; or, if `value` is not empty, a value of a key that was renamed.
struct Renamed {
  const char *key, *value, *now;
};
constexpr Renamed kRenamed[] = {{"train.sums", "", "train.grad_reduce_dtype"},
                                {"train.reduce", "", "train.grad_reduce"},
                                {"train.products", "", "train.matmul_precision"},
                                {"train.regather", "", "train.reshard_after_forward"},
                                {"train.grad_reduce", "part", "microbatch"}};

/// The new name of a key (possibly short) or of its value; "" if it was not renamed.
std::string name_now(const std::string& key, const std::string& value = "") {
  for (const Renamed& r : kRenamed) {
    const std::string old = r.key;
    if (value == r.value && (key == old || key == old.substr(old.find('.') + 1))) return r.now;
  }
  return "";
}

}  // namespace

Config::Config(const std::vector<ConfigKey>& keys) : keys_(keys) {}

size_t Config::find(const std::string& key) const {
  std::vector<std::string> names, matches;
  size_t found = keys_.size();
  for (size_t i = 0; i < keys_.size(); ++i) {
    const ConfigKey& k = keys_[i];
    const std::string last = k.name.substr(k.name.rfind('.') + 1);
    if (k.name == key) return i;
    if (last == key) {
      matches.push_back(k.name);
      found = i;
    }
    names.push_back(k.name);
    if (key.find('.') == std::string::npos) names.push_back(last);
  }
  TESSERA_REQUIRE(matches.size() < 2, "key '{}' is ambiguous: {}", key, fmt::join(matches, ", "));
  const std::string now = name_now(key);
  TESSERA_REQUIRE(found < keys_.size() || now.empty(), "unknown key '{}'; it is called {} now", key,
                  now);
  std::string hint = suggestion(key, names);
  if (hint.starts_with("; known")) {  // none is near: list all keys
    std::vector<std::string> all;
    for (const ConfigKey& k : keys_) all.push_back(k.name);
    hint = fmt::format("; known: {}", fmt::join(all, ", "));
  }
  TESSERA_REQUIRE(found < keys_.size(), "unknown key '{}'{}", key, hint);
  return found;
}

void Config::set(const std::string& key, const std::string& value) { set_at({}, key, value); }

void Config::set_at(const Place& place, const std::string& key, const std::string& value) {
  ConfigKey& found = keys_[find(key)];
  found.value = value;
  given_[found.name] = place;
}

/// Errors name the file and the line.
void Config::at_place(const Place& place, const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& e) {
    std::string text = e.what();
    if (place.file.empty()) throw;
    if (text.starts_with(place.file + ": ")) text = text.substr(place.file.size() + 2);
    fail(e.kind(), "{}: {} (line {})", place.file, text, place.line);
  }
}

void Config::at_place_of(const std::string& key, const std::function<void()>& work) const {
  const auto given = given_.find(keys_[find(key)].name);
  at_place(given == given_.end() ? Place() : given->second, work);
}

bool Config::is_given(const std::string& key) const {
  return given_.contains(keys_[find(key)].name);
}

const std::string& Config::text(const std::string& key) const { return keys_[find(key)].value; }

namespace {
template <class T>
T parse(const std::string& key, const std::string& text, const char* what) {
  T value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  TESSERA_REQUIRE(error == std::errc() && end == text.data() + text.size(),
                  "key '{}' is '{}', which is not {}", key, text, what);
  return value;
}

std::string text_of(const toml::node& node, const std::string& key) {
  if (auto v = node.value<std::string>(); v && node.is_string()) return *v;
  if (node.is_boolean()) return *node.value<bool>() ? "true" : "false";
  if (node.is_integer()) return fmt::format("{}", *node.value<int64_t>());
  if (node.is_floating_point()) return fmt::format("{}", *node.value<double>());
  fail(ErrorKind::usage, "key '{}' is neither text, number nor true/false", key);
}
}  // namespace

int64_t Config::integer(const std::string& key) const {
  int64_t value = 0;
  at_place_of(key, [&] { value = parse<int64_t>(key, text(key), "a whole number"); });
  return value;
}
double Config::number(const std::string& key) const {
  double value = 0;
  at_place_of(key, [&] { value = parse<double>(key, text(key), "a number"); });
  return value;
}
bool Config::flag(const std::string& key) const {
  const std::string& value = text(key);
  at_place_of(key, [&] {
    TESSERA_REQUIRE(value == "true" || value == "false",
                    "key '{}' is '{}', which is not true or false", key, value);
  });
  return value == "true";
}

std::string cli::range_text(const KeyRange& range) {
  if (range.kind == KeyRange::Kind::any) return "";
  if (range.kind == KeyRange::Kind::word) return fmt::format("{}", fmt::join(range.words, " or "));
  const char* what = range.kind == KeyRange::Kind::whole ? "a whole number" : "a number";
  return fmt::format("{}{}{} {} {}{}", fmt::join(range.words, ", "),
                     range.words.empty() ? "" : ", or ", what,
                     range.most < 1e12 ? "from" : "of at least", range.least,
                     range.most < 1e12 ? fmt::format(" to {}", range.most) : "");
}

void Config::require_ranges() const {
  for (const ConfigKey& k : keys_) at_place_of(k.name, [&] { require_range(k); });
}

void Config::require_range(const ConfigKey& k) const {
  const KeyRange& r = k.range;
  const bool is_word = std::find(r.words.begin(), r.words.end(), k.value) != r.words.end();
  if (r.kind == KeyRange::Kind::any || is_word) return;
  const std::string now = name_now(k.name, k.value);
  TESSERA_REQUIRE(now.empty(), "key '{}' is '{}'; that is called {} now", k.name, k.value, now);
  const bool is_switch = r.kind == KeyRange::Kind::word && r.words.size() == 2;
  TESSERA_REQUIRE(!is_switch, "key '{}' is '{}'; it is {}", k.name, k.value, cli::range_text(r));
  TESSERA_REQUIRE(r.kind != KeyRange::Kind::word, "unknown {} '{}'{}",
                  k.name.substr(k.name.find('.') + 1), k.value, suggestion(k.value, r.words));
  const double value = r.kind == KeyRange::Kind::whole
                           ? static_cast<double>(parse<int64_t>(k.name, k.value, "a whole number"))
                           : parse<double>(k.name, k.value, "a number");
  TESSERA_REQUIRE(value >= r.least && value <= r.most, "key '{}' is {}; it must be {}", k.name,
                  k.value, cli::range_text(r));
}

namespace {

std::string read_text(const std::string& path) { return read_text_file("configuration", path); }

/// The axes of a rule as text: "data", "pod+data", "-", "=data", or from a list of axes.
std::string axes_text(const toml::node& node, const std::string& key) {
  if (!node.is_array()) return text_of(node, key);
  std::string text;
  for (const toml::node& axis : *node.as_array())
    text += (text.empty() ? "" : "+") + text_of(axis, key);
  return text.empty() ? "-" : text;
}

/// The blend of a table of weights by path: "0.7:a.idx,0.3:b.idx".
std::string blend_text(const toml::table& table) {
  std::string text;
  for (const auto& [path, weight] : table) {
    const std::string name(path.str());
    TESSERA_REQUIRE(
        weight.is_number() && name.find(',') == name.npos,
        "data.path '{}' = {} is no weight of a file; write \"FILE\" = 0.7, and no comma in its "
        "name",
        name, text_of(weight, "data.path"));
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", *weight.value<double>(), name);
  }
  TESSERA_REQUIRE(!text.empty(), "the table data.path is empty; write \"FILE\" = weight into it");
  return text;
}

/// The clause of a TOML key and its axes: "batch" = "data", "d_model@state" = "data", "@/*norm*/
/// length" = "model".
std::string clause_of(const std::string& key, const std::string& axes) {
  TESSERA_REQUIRE(axes.find(':') == std::string::npos, "unknown key 'layout.{}'{}", key,
                  suggestion(key, {"mesh", "rules"}));
  const size_t at = key.find('@');
  const std::string purpose = at == std::string::npos || at == 0 ? "" : key.substr(at) + " ";
  const std::string names = purpose.empty() ? key : key.substr(0, at);
  return purpose + names + (axes.starts_with('=') ? "" : ":") + axes;
}

/// True for a number or boolean in TOML syntax; ".5", "007" and integers of more than 64 bits are
/// not.
bool stands_bare(const std::string& value) {
  if (value == "true" || value == "false") return true;
  const char *begin = value.data(), *end = begin + value.size();
  double number;
  if (const auto [stop, error] = std::from_chars(begin, end, number);
      error != std::errc() || stop != end)
    return false;
  int64_t whole;
  if (value.find_first_not_of("-0123456789") == value.npos &&
      std::from_chars(begin, end, whole).ec != std::errc())
    return false;
  const std::string digits = value.substr(value[0] == '-' ? 1 : 0);
  if (digits == "inf" || digits == "nan") return true;
  const size_t point = digits.find('.');
  const auto is_digit = [&](size_t i) { return i < digits.size() && std::isdigit(digits[i]); };
  return is_digit(0) && !(digits[0] == '0' && is_digit(1)) &&
         (point == digits.npos || is_digit(point + 1));
}

}  // namespace

std::string cli::toml_model_name(const std::string& path) {
  const toml::table file = parse_toml(read_text(path), path);
  return file["model"]["name"].value_or<std::string>("gpt");
}

void Config::load_toml(const std::string& path) { load_toml_text(read_text(path), path); }

void Config::load_stored(const std::string& text, const std::string& path) {
  const auto model = parse_toml(text, path)["model"]["name"].value<std::string>();
  TESSERA_REQUIRE(!model || *model == this->text("model.name"),
                  "it holds a checkpoint of the model '{}', not of '{}'", model.value_or(""),
                  this->text("model.name"));
  Config all = *this;
  for (const Renamed& r : kRenamed) {
    if (*r.value == 0) all.keys_.push_back({r.key, "", ""});
  }
  all.load_toml_text(text, path);
  for (const ConfigKey& k : all.keys_) {
    if (!all.given_.contains(k.name)) continue;
    const std::string key = name_now(k.name), name = key.empty() ? k.name : key,
                      value = name_now(name, k.value);
    set(name, value.empty() ? k.value : value);
  }
}

void Config::load_toml_text(const std::string& text, const std::string& path) {
  const toml::table file = parse_toml(text, path);
  const auto place_of = [&](const toml::node& node) {
    return Place{path, static_cast<int64_t>(node.source().begin.line)};
  };
  for (const auto& [section, node] : file) {
    const std::string name(section.str());
    const Place place = place_of(node);
    if (name == "layout" && node.is_string()) {
      set_at(place, "layout.rules", text_of(node, name));
      continue;
    }
    const toml::table* table = node.as_table();
    at_place(place, [&] {
      TESSERA_REQUIRE(
          table != nullptr,
          "key '{}' stands outside a table; put it under [model], [train], [data] or [layout]",
          name);
      TESSERA_REQUIRE(name == "model" || name == "train" || name == "data" || name == "layout",
                      "unknown table [{}]{}", name,
                      suggestion(name, {"model", "train", "data", "layout"}));
    });
    std::string rules;
    Place of_rules = place;
    for (const auto& [entry, value] : *table) {
      const std::string key(entry.str());
      const toml::node& given = value;
      at_place(place_of(given), [&] {
        if (name == "layout" && key != "mesh") {
          const std::string clause = key == "rules"
                                         ? text_of(given, "layout.rules")
                                         : clause_of(key, axes_text(given, "layout." + key));
          if (clause.empty()) return;
          if (rules.empty()) of_rules = place_of(given);
          rules += (rules.empty() ? "" : ";") + clause;
          return;
        }
        const std::string full = name + "." + key;
        set_at(place_of(given), full,
               full == "data.path" && given.is_table() ? blend_text(*given.as_table())
                                                       : text_of(given, full));
      });
    }
    if (!rules.empty()) set_at(of_rules, "layout.rules", rules);
  }
}

std::string Config::to_toml() const {
  std::string result, section;
  for (const ConfigKey& k : keys_) {
    const size_t dot = k.name.find('.');
    if (k.name.substr(0, dot) != section) {
      section = k.name.substr(0, dot);
      result += fmt::format("{}[{}]\n", result.empty() ? "" : "\n", section);
    }
    result += fmt::format("{} = {}\n", k.name.substr(dot + 1),
                          stands_bare(k.value) ? k.value : toml_quoted(k.value));
  }
  return result;
}

}  // namespace tessera
