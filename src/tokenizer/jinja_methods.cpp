// Methods of texts and objects, as Python has them, and the functions of the environment.
#include <algorithm>
#include <cctype>
#include <ctime>

#include "base/fail.h"
#include "tokenizer/jinja_texts.h"
#include "tokenizer/utf8.h"

namespace tessera::jinja {

namespace {

bool is_blank(const std::string& character) {
  const char32_t point = utf8_code_point(character, 0, character.size());
  return is_white_space(point) || (point >= 0x1C && point <= 0x1F);
}

std::string joined(const std::vector<std::string>& parts, size_t first, size_t last) {
  std::string text;
  for (size_t i = first; i < last; ++i) text += parts[i];
  return text;
}

/// At white space, which is gone at the ends, too.
Value split_at_blanks(const std::string& text, int64_t most, bool from_end) {
  std::vector<std::string> all = characters(text);
  if (from_end) std::reverse(all.begin(), all.end());
  std::vector<std::string> parts;
  const auto skip = [&](size_t at) {
    while (at < all.size() && is_blank(all[at])) ++at;
    return at;
  };
  for (size_t at = skip(0); at < all.size(); at = skip(at)) {
    size_t end = at;
    const bool rest = most >= 0 && std::ssize(parts) >= most;
    while (end < all.size() && (rest || !is_blank(all[end]))) ++end;
    std::vector<std::string> part(all.begin() + static_cast<long>(at),
                                  all.begin() + static_cast<long>(end));
    if (from_end) std::reverse(part.begin(), part.end());
    parts.push_back(joined(part, 0, part.size()));
    at = rest ? all.size() : end;
  }
  if (from_end) std::reverse(parts.begin(), parts.end());
  return parts;
}

Value split(const std::string& text, const Bound& args, bool from_end) {
  const int64_t most = args.whole(1, -1);
  if (!args.has(0) || args[0].is_null()) return split_at_blanks(text, most, from_end);
  const std::string& at = args.text(0);
  TESSERA_REQUIRE(!at.empty(), "[chat template] split at an empty text");
  std::vector<std::string> parts;
  std::string_view rest = text;
  while (most < 0 || std::ssize(parts) < most) {
    const size_t found = from_end ? rest.rfind(at) : rest.find(at);
    if (found == rest.npos) break;
    parts.emplace_back(from_end ? rest.substr(found + at.size()) : rest.substr(0, found));
    rest = from_end ? rest.substr(0, found) : rest.substr(found + at.size());
  }
  parts.emplace_back(rest);
  if (from_end) std::reverse(parts.begin(), parts.end());
  return parts;
}

Value split_lines(const std::string& text) {
  Value lines = Value::array();
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of("\n\r\v\f", begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + (text.compare(end, 2, "\r\n") == 0 ? 2 : 1);
  }
  return lines;
}

/// The parts before, at and behind a separator.
Value partition(const std::string& text, const std::string& at, bool from_end) {
  TESSERA_REQUIRE(!at.empty(), "[chat template] partition at an empty text");
  const size_t found = from_end ? text.rfind(at) : text.find(at);
  if (found == text.npos) return from_end ? Value({"", "", text}) : Value({text, "", ""});
  return Value({text.substr(0, found), at, text.substr(found + at.size())});
}

/// Whether a text begins, or ends, with a text or with one of a list.
bool meets(const std::string& text, const Value& parts, bool begin) {
  const auto fits = [&](const Value& part) {
    TESSERA_REQUIRE(part.is_string(), "[chat template] startswith or endswith of {}",
                    kind_of(part));
    const auto& other = part.get_ref<const std::string&>();
    return begin ? text.starts_with(other) : text.ends_with(other);
  };
  return parts.is_array() ? std::any_of(parts.begin(), parts.end(), fits) : fits(parts);
}

/// In characters; -1 if it is not there.
int64_t place_of(const std::string& text, const std::string& part, bool last) {
  const size_t at = last ? text.rfind(part) : text.find(part);
  return at == text.npos ? -1 : std::ssize(characters(text.substr(0, at)));
}

int64_t count_of(const std::string& text, const std::string& part) {
  int64_t count = 0;
  TESSERA_REQUIRE(!part.empty(), "[chat template] count of an empty text");
  for (size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++count;
  return count;
}

/// Whether all characters, which are ASCII, are of a kind.
bool are_all(const std::string& text, int (*is)(int), const std::string& name) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) refuse(name + "() of characters beyond ASCII");
    if (is(static_cast<unsigned char>(c)) == 0) return false;
  }
  return !text.empty();
}

/// nullopt: there is no such method.
std::optional<Value> method_of_text(const std::string& name, const std::string& text,
                                    const Arguments& args) {
  const auto bound = [&](std::vector<const char*> names) {
    return Bound(name + "()", args, std::move(names));
  };
  const bool is_right = name.starts_with("r");
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Bound b = bound({"chars"});
    return stripped(text, b[0], name != "rstrip", name != "lstrip");
  }
  if (name == "split" || name == "rsplit") return split(text, bound({"sep", "maxsplit"}), is_right);
  if (name == "splitlines") return bound({}), split_lines(text);
  if (name == "partition" || name == "rpartition")
    return partition(text, bound({"sep"}).text(0), is_right);
  if (name == "replace") {
    const Bound b = bound({"old", "new", "count"});
    return replaced(text, b.text(0), b.text(1), b.whole(2, -1));
  }
  if (name == "startswith" || name == "endswith")
    return meets(text, bound({"prefix"})[0], name == "startswith");
  if (name == "removeprefix" || name == "removesuffix") {
    const std::string part = bound({"part"}).text(0);
    const bool begin = name == "removeprefix";
    if (!(begin ? text.starts_with(part) : text.ends_with(part))) return text;
    return begin ? text.substr(part.size()) : text.substr(0, text.size() - part.size());
  }
  if (name == "find" || name == "rfind") return place_of(text, bound({"sub"}).text(0), is_right);
  if (name == "count") return count_of(text, bound({"sub"}).text(0));
  if (name == "join") {
    Arguments joint;
    joint.values = {text};
    return filtered("join", bound({"iterable"})[0], joint);
  }
  if (name == "zfill" || name == "ljust" || name == "rjust")
    return padded(text, bound({"width"}).whole(0), name == "zfill" ? '0' : ' ', name != "ljust");
  if (name == "isdigit" || name == "isdecimal" || name == "isnumeric")
    return are_all(
        text, [](int c) { return std::isdigit(c); }, name);
  if (name == "isalpha")
    return are_all(
        text, [](int c) { return std::isalpha(c); }, name);
  if (name == "isalnum")
    return are_all(
        text, [](int c) { return std::isalnum(c); }, name);
  if (name == "isspace") {
    const std::vector<std::string> all = characters(text);
    return !all.empty() && std::all_of(all.begin(), all.end(), is_blank);
  }
  if (name == "isupper" || name == "islower")
    return test(name.substr(2), text, args) && changed_case(text, "swapcase") != text;
  if (name == "format") return formatted(text, args);
  if (is_case(name)) return bound({}), changed_case(text, name);
  return {};
}

std::optional<Value> method_of_object(const std::string& name, const Value& v,
                                      const Arguments& args) {
  if (name == "get") {
    const Bound b("get()", args, {"key", "default"});
    const Value found = element(v, b[0]);
    return is_undefined(found) ? (b.has(1) ? b[1] : Value()) : found;
  }
  if (name == "items" || name == "keys" || name == "values") {
    Value all = Value::array();
    for (const auto& [key, item] : v.items())
      all.push_back(name == "items"  ? Value::array({key, item})
                    : name == "keys" ? Value(key)
                                     : item);
    return all;
  }
  if (name == "cycle" && v.contains("revindex0") && !args.values.empty())  // of "loop"
    return args.values[v["index0"].get<size_t>() % args.values.size()];
  return {};
}

std::optional<Value> method_of_list(const std::string& name, const Value& v,
                                    const Arguments& args) {
  const auto is_it = [&](const Value& item) { return equal(item, args.values.at(0)); };
  if (args.values.size() != 1) return {};
  if (name == "count") return std::count_if(v.begin(), v.end(), is_it);
  if (name == "index") {
    const auto at = std::find_if(v.begin(), v.end(), is_it) - v.begin();
    TESSERA_REQUIRE(at < std::ssize(v), "[chat template] index() of what the list lacks");
    return at;
  }
  return {};
}

Value range(const std::vector<Value>& args) {
  constexpr int64_t kMost = 100'000;
  for (const Value& v : args)
    TESSERA_REQUIRE(v.is_number_integer(), "[chat template] range() of {}", kind_of(v));
  TESSERA_REQUIRE(!args.empty() && args.size() <= 3, "[chat template] range() of {} numbers",
                  args.size());
  const int64_t begin = args.size() > 1 ? args[0].get<int64_t>() : 0;
  const int64_t end = args[args.size() > 1 ? 1 : 0].get<int64_t>();
  const int64_t step = args.size() > 2 ? args[2].get<int64_t>() : 1;
  TESSERA_REQUIRE(std::max(begin, end) < kMost && std::min(begin, end) > -kMost,
                  "[chat template] range({}, {})", begin, end);
  TESSERA_REQUIRE(step != 0 && step < kMost && step > -kMost, "[chat template] range() by {}",
                  step);
  Value all = Value::array();
  for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) all.push_back(i);
  return all;
}

/// The time of this place.
Value time_as(const std::string& format) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::string text(format.size() * 32 + 64, '\0');
  text.resize(std::strftime(text.data(), text.size(), format.c_str(), &local));
  return text;
}

}  // namespace

Value method(const std::string& name, const Value& v, const Arguments& args) {
  std::optional<Value> result;
  if (v.is_string()) result = method_of_text(name, v.get_ref<const std::string&>(), args);
  if (v.is_object()) result = method_of_object(name, v, args);
  if (v.is_array()) result = method_of_list(name, v, args);
  if (!result) refuse("the method '" + name + "' of " + kind_of(v));
  return *result;
}

bool is_function(const std::string& name) {
  static constexpr std::string_view kNames[] = {"dict", "namespace", "raise_exception", "range",
                                                "strftime_now"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

std::optional<Value> function(const std::string& name, const Arguments& args) {
  if (!is_function(name)) return {};
  if (name == "range") return range(args.values);
  if (name == "strftime_now") return time_as(Bound(name + "()", args, {"format"}).text(0));
  if (name == "raise_exception")
    fail(ErrorKind::usage, "[chat template] {}", text_of(Bound(name + "()", args, {"message"})[0]));
  Value object = Value::object();
  if (!args.values.empty() && args.values[0].is_object()) object = args.values[0];
  for (const auto& [key, value] : args.named) object[key] = value;
  return object;
}

}  // namespace tessera::jinja
