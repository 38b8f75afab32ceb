// Filters and tests. Those that choose or change elements take the name of another test or filter.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "base/fail.h"
#include "tokenizer/jinja_texts.h"

namespace tessera::jinja {

namespace {

const std::string& string_of(const Value& v, const std::string& what) {
  TESSERA_REQUIRE(v.is_string(), "[chat template] {} of {}, which is no text", what, kind_of(v));
  return v.get_ref<const std::string&>();
}

/// "a.b.0" of a value.
Value attribute_of(Value v, const Value& path) {
  if (path.is_number_integer()) return element(v, path);
  const std::string& names = string_of(path, "an attribute");
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find('.', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    int64_t index = 0;
    const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), index);
    const bool is_index = error == std::errc() && *stop == 0;
    v = is_undefined(v) ? v : element(v, is_index ? Value(index) : Value(name));
    begin = end + 1;
  }
  return v;
}

Arguments rest_of(const Arguments& args, size_t from) {
  Arguments rest = args;
  rest.values.erase(rest.values.begin(),
                    rest.values.begin() + static_cast<long>(std::min(from, rest.values.size())));
  return rest;
}

/// select, reject, selectattr, rejectattr.
Value selected(const std::string& name, const Value& v, const Arguments& args) {
  const bool by_attribute = name.ends_with("attr"), keeps = name.starts_with("select");
  const size_t at = by_attribute ? 1 : 0;
  TESSERA_REQUIRE(args.values.size() >= at, "[chat template] {} needs an attribute", name);
  Value result = Value::array();
  for (const Value& item : items_of(v, "a choice of")) {
    const Value tested = by_attribute ? attribute_of(item, args.values[0]) : item;
    const bool holds = args.values.size() > at
                           ? test(string_of(args.values[at], name), tested, rest_of(args, at + 1))
                           : truth(tested);
    if (holds == keeps) result.push_back(item);
  }
  return result;
}

Value mapped(const Value& v, const Arguments& args) {
  Value result = Value::array();
  for (const Value& item : items_of(v, "map of")) {
    if (args.values.empty()) {
      const Bound b("map", args, {"attribute", "default"});
      const Value found = attribute_of(item, b[0]);
      result.push_back(is_undefined(found) && b.has(1) ? b[1] : found);
    } else {
      result.push_back(filtered(string_of(args.values[0], "map"), item, rest_of(args, 1)));
    }
  }
  return result;
}

/// What elements are ordered by: an attribute, and texts without their case.
Value key_of(const Value& item, const Value& attribute, bool by_case) {
  Value key = is_undefined(attribute) || attribute.is_null() ? item : attribute_of(item, attribute);
  return key.is_string() && !by_case ? filtered("lower", key, {}) : key;
}

/// sort(reverse, case_sensitive, attribute), unique, min and max (case_sensitive, attribute).
Value ordered(const std::string& name, const Value& v, const Arguments& args) {
  const Bound b(name, args,
                name == "sort" ? std::vector{"reverse", "case_sensitive", "attribute"}
                               : std::vector{"case_sensitive", "attribute"});
  const size_t first = name == "sort" ? 1 : 0;
  const auto key = [&](const Value& x) { return key_of(x, b[first + 1], b.flag(first, false)); };
  std::vector<Value> all = items_of(v, "an order of");
  if (name == "unique") {
    std::vector<Value> once;
    for (const Value& item : all) {
      if (std::none_of(once.begin(), once.end(),
                       [&](const Value& x) { return equal(key(x), key(item)); }))
        once.push_back(item);
    }
    return once;
  }
  const auto less = [&](const Value& x, const Value& y) { return compares("<", key(x), key(y)); };
  if (name == "sort") {
    const bool back = b.flag(0, false);
    std::stable_sort(all.begin(), all.end(), [&](const Value& x, const Value& y) {
      return back ? less(y, x) : less(x, y);
    });
    return all;
  }
  if (all.empty()) return undefined();
  return name == "min" ? *std::min_element(all.begin(), all.end(), less)
                       : *std::max_element(all.begin(), all.end(), less);
}

Value sorted_pairs(const Value& v, const Arguments& args) {
  const Bound b("dictsort", args, {"case_sensitive", "by", "reverse"});
  Arguments how;
  how.values = {b.flag(2, false), b.flag(0, false), b.text(1, "key") == "value" ? 1 : 0};
  return ordered("sort", method("items", v, {}), how);
}

/// As Python's json.dumps() with ensure_ascii=False writes it.
class JsonText {
 public:
  explicit JsonText(const Bound& args) : ascii_(args.flag(0, false)), sorts_(args.flag(3, false)) {
    has_lines_ = args.has(1) && !args[1].is_null();
    if (has_lines_)
      indent_ =
          args[1].is_string()
              ? args.text(1)
              : std::string(static_cast<size_t>(std::clamp<int64_t>(args.whole(1), 0, 64)), ' ');
    comma_ = has_lines_ ? "," : ", ";
    if (!args.has(2) || args[2].is_null()) return;
    TESSERA_REQUIRE(args[2].is_array() && args[2].size() == 2,
                    "[chat template] tojson: separators are two texts");
    comma_ = string_of(args[2][0], "separators"), colon_ = string_of(args[2][1], "separators");
  }
  std::string of(const Value& v, int depth = 0) const {
    if (is_undefined(v)) refuse("the filter 'tojson' of undefined");
    if (v.is_number_float()) return text_of(v);
    if (!v.is_structured()) return v.dump(-1, ' ', ascii_, Value::error_handler_t::replace);
    std::vector<std::pair<std::string, Value>> items;
    for (const auto& [key, item] : v.items()) items.emplace_back(key, item);
    if (sorts_ && v.is_object())
      std::stable_sort(items.begin(), items.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
    const auto line = [&](int steps) {
      std::string text = has_lines_ ? "\n" : "";
      for (int i = 0; has_lines_ && i < steps; ++i) text += indent_;
      return text;
    };
    std::string all;
    for (const auto& [key, item] : items) {
      if (!all.empty()) all += comma_;
      all += line(depth + 1);
      if (v.is_object())
        all += Value(key).dump(-1, ' ', ascii_, Value::error_handler_t::replace) + colon_;
      all += of(item, depth + 1);
      TESSERA_REQUIRE(all.size() <= kMostText, "[chat template] a text has more than {} bytes",
                      kMostText);
    }
    if (!items.empty()) all += line(depth);
    return v.is_object() ? "{" + all + "}" : "[" + all + "]";
  }

 private:
  bool ascii_, sorts_, has_lines_ = false;
  std::string indent_, comma_, colon_ = ": ";
};

Value joined(const Value& v, const Bound& args) {
  const std::string between = args.has(0) ? text_of(args[0]) : "";
  std::string all;
  bool first = true;
  for (const Value& item : items_of(v, "join of")) {
    if (!std::exchange(first, false)) all += between;
    all += text_of(args.has(1) ? attribute_of(item, args[1]) : item);
  }
  return all;
}

/// Lines with a space in front, the first and empty ones only if asked for.
Value indented(const std::string& text, const Bound& args) {
  const std::string space =
      args.has(0) && args[0].is_string()
          ? args.text(0)
          : std::string(static_cast<size_t>(std::clamp<int64_t>(args.whole(0, 4), 0, 256)), ' ');
  const bool first = args.flag(1, false), blank = args.flag(2, false);
  std::string result;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if ((begin > 0 || first) && (blank || end > begin)) result += space;
    result.append(text, begin, end - begin + (end < text.size() ? 1 : 0));
    begin = end + 1;
  }
  return result;
}

Value rounded(const Value& v, const Bound& args) {
  TESSERA_REQUIRE(v.is_number(), "[chat template] round of {}", kind_of(v));
  const std::string how = args.text(1, "common");
  const double scale = std::pow(10.0, static_cast<double>(args.whole(0, 0))), x = v.get<double>();
  if (how == "ceil") return std::ceil(x * scale) / scale;
  if (how == "floor") return std::floor(x * scale) / scale;
  return std::nearbyint(x * scale) / scale;  // halves to even, as Python
}

Value number_of(const Value& v, const Value& otherwise, bool whole) {
  if (v.is_boolean())
    return whole ? Value(v.get<bool>() ? 1 : 0) : Value(v.get<bool>() ? 1.0 : 0.0);
  if (v.is_number())
    return whole ? Value(static_cast<int64_t>(v.get<double>())) : Value(v.get<double>());
  if (!v.is_string()) return otherwise;
  const std::string text = stripped(v.get_ref<const std::string&>(), Value(), true, true);
  double x = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
  if (text.empty() || error != std::errc() || *end != 0) return otherwise;
  return whole ? Value(static_cast<int64_t>(x)) : Value(x);
}

Value escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '&')
      result += "&amp;";
    else if (c == '<')
      result += "&lt;";
    else if (c == '>')
      result += "&gt;";
    else if (c == '\'')
      result += "&#39;";
    else if (c == '"')
      result += "&#34;";
    else
      result += c;
  }
  return result;
}

Value truncated(const std::string& text, const Bound& args) {
  const int64_t length = args.whole(0, 255), leeway = args.whole(3, 5);
  const std::string end = args.text(2, "...");
  const std::vector<std::string> all = characters(text);
  if (std::ssize(all) <= length + leeway) return text;
  const int64_t kept = std::max<int64_t>(0, length - std::ssize(characters(end)));
  std::string result;
  for (int64_t i = 0; i < kept; ++i) result += all[static_cast<size_t>(i)];
  if (!args.flag(1, false)) result = result.substr(0, result.rfind(' '));
  return result + end;
}

/// "%s and %d" with values.
Value with_values(const std::string& text, const Arguments& args) {
  std::string result;
  size_t next = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') {
      result += text[at];
    } else if (text.compare(at, 2, "%%") == 0) {
      result += text[at++];
    } else {
      const std::string kind = text.substr(at++, 2);
      if (kind != "%s" && kind != "%d") refuse("the format '" + kind + "'");
      TESSERA_REQUIRE(next < args.values.size(), "[chat template] format lacks a value for '{}'",
                      kind);
      result += text_of(args.values[next++]);
    }
  }
  return result;
}

Value length_of(const Value& v) {
  if (v.is_string()) return std::ssize(characters(v.get_ref<const std::string&>()));
  if (is_undefined(v)) return 0;
  TESSERA_REQUIRE(v.is_structured(), "[chat template] the length of {}", kind_of(v));
  return std::ssize(v);
}

Value sum_of(const Value& v, const Bound& args) {
  Value sum = args.has(1) ? args[1] : Value(0);
  for (const Value& item : items_of(v, "sum of"))
    sum = arithmetic("+", sum, args.has(0) ? attribute_of(item, args[0]) : item);
  return sum;
}

/// Lists of `args[0]` elements, the last one filled up.
Value batches_of(const Value& v, const Bound& args) {
  const int64_t size = args.whole(0);
  TESSERA_REQUIRE(size > 0 && size < 1 << 20, "[chat template] batches of {}", size);
  Value all = Value::array();
  for (const Value& item : items_of(v, "batches of")) {
    if (all.empty() || std::ssize(all.back()) == size) all.push_back(Value::array());
    all.back().push_back(item);
  }
  while (args.has(1) && !all.empty() && std::ssize(all.back()) < size)
    all.back().push_back(args[1]);
  return all;
}

using Filter = Value (*)(const Value& value, const Bound& args, const std::string& name);
struct FilterRow {
  std::vector<const char*> names;  ///< of its arguments
  Filter run;
};

const std::map<std::string, FilterRow>& filters() {
  using V = const Value&;
  using B = const Bound&;
  using N = const std::string&;
  static const FilterRow change = {
      {}, [](V v, B, N name) { return Value(changed_case(text_of(v), name)); }};
  static const FilterRow length = {{}, [](V v, B, N) { return length_of(v); }};
  static const FilterRow otherwise = {{"default_value", "boolean"}, [](V v, B b, N) {
                                        const bool missing =
                                            b.flag(1, false) ? !truth(v) : is_undefined(v);
                                        return missing ? (b.has(0) ? b[0] : Value("")) : v;
                                      }};
  static const FilterRow escape = {{}, [](V v, B, N) { return escaped(text_of(v)); }};
  static const std::map<std::string, FilterRow> all = {
      {"abs", {{}, [](V v, B, N) { return compares("<", v, 0) ? arithmetic("-", 0, v) : v; }}},
      {"batch", {{"linecount", "fill_with"}, [](V v, B b, N) { return batches_of(v, b); }}},
      {"capitalize", change},
      {"center",
       {{"width"},
        [](V v, B b, N) {
          const std::string text = text_of(v);
          const int64_t more =
                            std::max<int64_t>(0, b.whole(0, 80) - length_of(text).get<int64_t>()),
                        left = more / 2 + (more & b.whole(0, 80) & 1);
          return Value(padded(padded(text, b.whole(0, 80) - more + left, ' ', true), b.whole(0, 80),
                              ' ', false));
        }}},
      {"count", length},
      {"d", otherwise},
      {"default", otherwise},
      {"e", escape},
      {"escape", escape},
      {"first",
       {{},
        [](V v, B, N) {
          const std::vector<Value> list = items_of(v, "the first of");
          return list.empty() ? undefined() : list.front();
        }}},
      {"float",
       {{"default"},
        [](V v, B b, N) { return number_of(v, b.has(0) ? b[0] : Value(0.0), false); }}},
      {"indent",
       {{"width", "first", "blank"},
        [](V v, B b, N name) { return indented(string_of(v, name), b); }}},
      {"int",
       {{"default"}, [](V v, B b, N) { return number_of(v, b.has(0) ? b[0] : Value(0), true); }}},
      {"items",
       {{}, [](V v, B, N) { return is_undefined(v) ? Value::array() : method("items", v, {}); }}},
      {"join", {{"d", "attribute"}, [](V v, B b, N) { return joined(v, b); }}},
      {"last",
       {{},
        [](V v, B, N) {
          const std::vector<Value> list = items_of(v, "the last of");
          return list.empty() ? undefined() : list.back();
        }}},
      {"length", length},
      {"list", {{}, [](V v, B, N) { return Value(items_of(v, "a list of")); }}},
      {"lower", change},
      {"replace",
       {{"old", "new", "count"},
        [](V v, B b, N) {
          return Value(replaced(text_of(v), b.text(0), b.text(1), b.whole(2, -1)));
        }}},
      {"reverse", {{}, [](V v, B, N) { return slice(v, Value(), Value(), -1); }}},
      {"round", {{"precision", "method"}, [](V v, B b, N) { return rounded(v, b); }}},
      {"safe", {{}, [](V v, B, N) { return v; }}},
      {"string", {{}, [](V v, B, N) { return Value(text_of(v)); }}},
      {"sum", {{"attribute", "start"}, [](V v, B b, N) { return sum_of(v, b); }}},
      {"title", change},
      {"tojson",
       {{"ensure_ascii", "indent", "separators", "sort_keys"},
        [](V v, B b, N) { return Value(JsonText(b).of(v)); }}},
      {"trim",
       {{"chars"},
        [](V v, B b, N name) {
          return Value(stripped(string_of(v, "the filter " + name), b[0], true, true));
        }}},
      {"truncate",
       {{"length", "killwords", "end", "leeway"},
        [](V v, B b, N name) { return truncated(string_of(v, name), b); }}},
      {"upper", change},
      {"wordcount", {{}, [](V v, B, N) { return length_of(method("split", text_of(v), {})); }}}};
  return all;
}

using Check = bool (*)(const Value& value, const Value& other);

/// Tests by the number of their arguments, 0 or 1.
const std::map<std::string, std::pair<size_t, Check>>& tests() {
  using V = const Value&;
  static const auto compare = [](const char* op) -> std::pair<size_t, Check> {
    const std::string_view o = op;
    if (o == "==") return {1, [](V a, V b) { return compares("==", a, b); }};
    if (o == "!=") return {1, [](V a, V b) { return compares("!=", a, b); }};
    if (o == "<") return {1, [](V a, V b) { return compares("<", a, b); }};
    if (o == "<=") return {1, [](V a, V b) { return compares("<=", a, b); }};
    if (o == ">") return {1, [](V a, V b) { return compares(">", a, b); }};
    if (o == ">=") return {1, [](V a, V b) { return compares(">=", a, b); }};
    return {1, [](V a, V b) { return compares("in", a, b); }};
  };
  static const std::map<std::string, std::pair<size_t, Check>> all = {
      {"boolean", {0, [](V a, V) { return a.is_boolean(); }}},
      {"defined", {0, [](V a, V) { return !is_undefined(a); }}},
      {"undefined", {0, [](V a, V) { return is_undefined(a); }}},
      {"divisibleby", {1, [](V a, V b) { return equal(arithmetic("%", a, b), 0); }}},
      {"even", {0, [](V a, V) { return equal(arithmetic("%", a, 2), 0); }}},
      {"odd", {0, [](V a, V) { return equal(arithmetic("%", a, 2), 1); }}},
      {"false", {0, [](V a, V) { return a.is_boolean() && !a.get<bool>(); }}},
      {"true", {0, [](V a, V) { return a.is_boolean() && a.get<bool>(); }}},
      {"float", {0, [](V a, V) { return a.is_number_float(); }}},
      {"integer", {0, [](V a, V) { return a.is_number_integer(); }}},
      {"number", {0, [](V a, V) { return a.is_number() || a.is_boolean(); }}},
      {"iterable",
       {0, [](V a, V) { return a.is_structured() || a.is_string() || is_undefined(a); }}},
      {"sequence",
       {0, [](V a, V) { return a.is_structured() || a.is_string() || is_undefined(a); }}},
      {"mapping", {0, [](V a, V) { return a.is_object(); }}},
      {"none", {0, [](V a, V) { return a.is_null() && !is_undefined(a); }}},
      {"string", {0, [](V a, V) { return a.is_string(); }}},
      {"sameas", {1, [](V a, V b) { return a.type() == b.type() && equal(a, b); }}},
      {"lower", {0, [](V a, V) { return changed_case(text_of(a), "lower") == text_of(a); }}},
      {"upper", {0, [](V a, V) { return changed_case(text_of(a), "upper") == text_of(a); }}},
      {"==", compare("==")},
      {"eq", compare("==")},
      {"equalto", compare("==")},
      {"!=", compare("!=")},
      {"ne", compare("!=")},
      {"<", compare("<")},
      {"lt", compare("<")},
      {"lessthan", compare("<")},
      {"<=", compare("<=")},
      {"le", compare("<=")},
      {">", compare(">")},
      {"gt", compare(">")},
      {"greaterthan", compare(">")},
      {">=", compare(">=")},
      {"ge", compare(">=")},
      {"in", compare("in")}};
  return all;
}

}  // namespace

bool test(const std::string& name, const Value& v, const Arguments& args) {
  const auto it = tests().find(name);
  if (it == tests().end()) refuse("the test '" + name + "'");
  const auto& [count, check] = it->second;
  TESSERA_REQUIRE(args.values.size() == count && args.named.empty(),
                  "[chat template] the test '{}' has {} arguments, not {}", name, count,
                  args.values.size() + args.named.size());
  return check(v, count == 0 ? Value() : args.values[0]);
}

Value filtered(const std::string& name, const Value& v, const Arguments& args) {
  if (name.starts_with("select") || name.starts_with("reject")) {
    if (name.size() == 6 || name.substr(6) == "attr") return selected(name, v, args);
  }
  if (name == "map") return mapped(v, args);
  if (name == "sort" || name == "unique" || name == "min" || name == "max")
    return ordered(name, v, args);
  if (name == "dictsort") return sorted_pairs(v, args);
  if (name == "format") return with_values(string_of(v, name), args);
  const auto it = filters().find(name);
  if (it == filters().end()) refuse("the filter '" + name + "'");
  return it->second.run(v, Bound("the filter " + name, args, it->second.names), name);
}

}  // namespace tessera::jinja
