#include "tokenizer/jinja_values.h"

#include <algorithm>
#include <cctype>

#include "base/fail.h"

namespace tessera::jinja {

namespace {

const std::string& string_of(const Value& v, const char* what) {
  TESSERA_REQUIRE(v.is_string(), "[chat template] {} of {}, which is no text", what, kind_of(v));
  return v.get_ref<const std::string&>();
}

std::string trimmed(const std::string& text) {
  const auto is_space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  auto begin = std::find_if_not(text.begin(), text.end(), is_space);
  auto end = std::find_if_not(text.rbegin(), std::make_reverse_iterator(begin), is_space).base();
  return {begin, end};
}

bool is_in(const Value& a, const Value& b) {
  if (b.is_string())
    return b.get_ref<const std::string&>().find(string_of(a, "the search")) != std::string::npos;
  if (b.is_object()) return a.is_string() && b.contains(a.get_ref<const std::string&>());
  TESSERA_REQUIRE(b.is_array(), "[chat template] 'in' {}", kind_of(b));
  return std::find(b.begin(), b.end(), a) != b.end();
}

}  // namespace

Value undefined() { return Value(Value::value_t::discarded); }
bool is_undefined(const Value& v) { return v.is_discarded(); }

const char* kind_of(const Value& v) {
  return is_undefined(v) ? "undefined" : v.is_null() ? "none" : v.type_name();
}

bool truth(const Value& v) {
  if (is_undefined(v) || v.is_null()) return false;
  if (v.is_boolean()) return v.get<bool>();
  if (v.is_number()) return v.get<double>() != 0;
  if (v.is_string()) return !v.get_ref<const std::string&>().empty();
  return !v.empty();
}

std::string text_of(const Value& v) {
  if (is_undefined(v)) return "";
  if (v.is_null()) return "None";
  if (v.is_boolean()) return v.get<bool>() ? "True" : "False";
  if (v.is_string()) return v.get<std::string>();
  TESSERA_REQUIRE(v.is_number_integer(), "[chat template] a {} is written as text", kind_of(v));
  return fmt::format("{}", v.get<int64_t>());
}

[[noreturn]] void refuse(const std::string& what) {
  fail(ErrorKind::unsupported,
       "[chat template] {} is not understood (tessera/chat_template.h lists what is); write the "
       "conversations as prompt and completion",
       what);
}

Value arithmetic(const std::string& op, const Value& a, const Value& b) {
  if (op == "~") return text_of(a) + text_of(b);
  if (op == "+" && a.is_string() && b.is_string()) {
    const auto &x = a.get_ref<const std::string&>(), &y = b.get_ref<const std::string&>();
    TESSERA_REQUIRE(x.size() + y.size() <= kMostText,
                    "[chat template] a text has more than {} bytes", kMostText);
    return x + y;
  }
  if (op == "+" && a.is_array() && b.is_array()) {
    Value all = a;
    TESSERA_REQUIRE(a.size() + b.size() <= kMostText,
                    "[chat template] a list has more than {} elements", kMostText);
    for (const Value& v : b) all.push_back(v);
    return all;
  }
  TESSERA_REQUIRE(a.is_number_integer() && b.is_number_integer(), "[chat template] {} {} {}",
                  kind_of(a), op, kind_of(b));
  const auto x = a.get<int64_t>(), y = b.get<int64_t>();
  int64_t result = 0;
  bool overflow = false;
  if (op == "+") overflow = __builtin_add_overflow(x, y, &result);
  if (op == "-") overflow = __builtin_sub_overflow(x, y, &result);
  if (op == "*") overflow = __builtin_mul_overflow(x, y, &result);
  if (op == "//" || op == "%") {
    TESSERA_REQUIRE(y > 0, "[chat template] {} {} {}", x, op, y);
    // C++ rounds a quotient to 0, Python down; neither sum below leaves int64_t.
    const bool below = x % y < 0;
    result = op == "%" ? x % y + (below ? y : 0) : x / y - (below ? 1 : 0);
  }
  TESSERA_REQUIRE(!overflow, "[chat template] {} {} {} is too large", x, op, y);
  return result;
}

bool compares(const std::string& op, const Value& a, const Value& b) {
  if (op == "in") return is_in(a, b);
  if (op == "not in") return !is_in(a, b);
  if (op == "==" || op == "!=") {
    const bool known = !is_undefined(a) && !is_undefined(b);
    const bool equal = known ? a == b : is_undefined(a) == is_undefined(b);
    return equal == (op == "==");
  }
  TESSERA_REQUIRE((a.is_number() && b.is_number()) || (a.is_string() && b.is_string()),
                  "[chat template] {} {} {}", kind_of(a), op, kind_of(b));
  if (op == "<") return a < b;
  if (op == "<=") return a <= b;
  return op == ">" ? a > b : a >= b;
}

bool test(const std::string& name, const Value& v) {
  if (name == "defined") return !is_undefined(v);
  if (name == "undefined") return is_undefined(v);
  if (name == "none") return v.is_null() && !is_undefined(v);
  if (name == "string") return v.is_string();
  if (name == "mapping") return v.is_object();
  if (name == "iterable") return v.is_array() || v.is_string() || v.is_object();
  refuse("the test '" + name + "'");
}

/// The characters of a text in UTF-8, which are what Python counts.
std::vector<std::string> characters(const Value& text) {
  std::vector<std::string> all;
  for (const char c : text.get_ref<const std::string&>()) {
    if (all.empty() || (static_cast<unsigned char>(c) & 0xC0) != 0x80) all.emplace_back();
    all.back() += c;
  }
  return all;
}

Value element(const Value& of, const Value& at) {
  if (of.is_string() && at.is_number_integer()) return element(characters(of), at);
  if (of.is_object() && at.is_string()) {
    const auto it = of.find(at.get_ref<const std::string&>());
    return it == of.end() ? undefined() : *it;
  }
  if (of.is_array() && at.is_number_integer()) {
    int64_t i = at.get<int64_t>();
    if (i < 0) i += std::ssize(of);
    return i < 0 || i >= std::ssize(of) ? undefined() : of[static_cast<size_t>(i)];
  }
  TESSERA_REQUIRE(!is_undefined(of), "[chat template] an element of what is undefined");
  return undefined();
}

Value slice(const Value& of, const Value& from, const Value& to, const Value& step) {
  TESSERA_REQUIRE(of.is_array() || of.is_string(), "[chat template] a slice of {}", kind_of(of));
  if (of.is_string()) {
    std::string text;
    for (const Value& c : slice(characters(of), from, to, step)) text += c.get<std::string>();
    return text;
  }
  const int64_t n = std::ssize(of);
  const int64_t by = step.is_number_integer() ? step.get<int64_t>() : 1;
  if (by != 1 && !(by == -1 && from.is_null() && to.is_null()))
    refuse(fmt::format("a slice with step {}", by));
  const auto bound = [&](const Value& v, int64_t otherwise) {
    if (!v.is_number_integer()) return otherwise;
    const int64_t i = v.get<int64_t>();
    return std::clamp<int64_t>(i < 0 ? std::max<int64_t>(i, -n) + n : i, 0, n);
  };
  const int64_t begin = bound(from, 0), end = std::max(begin, bound(to, n));
  Value result = Value::array();
  for (int64_t i = begin; i < end; ++i) result.push_back(of[static_cast<size_t>(i)]);
  if (by == -1) std::reverse(result.begin(), result.end());
  return result;
}

namespace {

/// As Python's json.dumps writes it, ensure_ascii=False. The keys of an object have an order there.
std::string json_of(const Value& v) {
  if (v.is_object() || is_undefined(v))
    refuse(fmt::format("the filter 'tojson' of {}", kind_of(v)));
  if (!v.is_array()) return v.dump(-1, ' ', false, Value::error_handler_t::replace);
  std::string all;
  for (const Value& item : v) all += (all.empty() ? "" : ", ") + json_of(item);
  return "[" + all + "]";
}

std::string replaced(const std::string& text, const std::string& old, const std::string& now) {
  TESSERA_REQUIRE(!old.empty(), "[chat template] replace of an empty text");
  std::string result;
  size_t from = 0;
  for (size_t at; (at = text.find(old, from)) != text.npos; from = at + old.size())
    result.append(text, from, at - from).append(now);
  return result.append(text, from);
}

Value split(const std::string& text, const std::string& at, int64_t most) {
  TESSERA_REQUIRE(!at.empty(), "[chat template] split at an empty text");
  Value parts = Value::array();
  size_t from = 0;
  for (size_t end;
       (most < 0 || std::ssize(parts) < most) && (end = text.find(at, from)) != text.npos;
       from = end + at.size())
    parts.push_back(text.substr(from, end - from));
  parts.push_back(text.substr(from));
  return parts;
}

/// `text` without characters of `set` at its ends.
std::string stripped(const std::string& text, const std::string& set, bool begin, bool end) {
  for (const char c : set)
    if (static_cast<unsigned char>(c) >= 0x80) refuse("strip of characters beyond ASCII");
  const size_t first = begin ? text.find_first_not_of(set) : 0;
  if (first == text.npos) return "";
  const size_t last = end ? text.find_last_not_of(set) : text.size() - 1;
  return last == text.npos ? "" : text.substr(first, last + 1 - first);
}

bool are_texts(const std::vector<Value>& args, size_t count) {
  return args.size() == count &&
         std::all_of(args.begin(), args.end(), [](const Value& v) { return v.is_string(); });
}

}  // namespace

Value filtered(const std::string& name, const Value& v, const std::vector<Value>& args) {
  if (name == "trim" && args.empty()) return trimmed(string_of(v, "the filter trim"));
  if (name == "length" && args.empty()) {
    TESSERA_REQUIRE(v.is_string() || v.is_array() || v.is_object(),
                    "[chat template] the length of {}", kind_of(v));
    return static_cast<int64_t>(v.is_string() ? characters(v).size() : v.size());
  }
  if (name == "default" && args.size() == 1) return is_undefined(v) ? args[0] : v;
  if ((name == "upper" || name == "lower") && args.empty()) {
    std::string text = string_of(v, "the filter");
    for (char& c : text) {
      if (name == "upper" && c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
      if (name == "lower" && c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
    return text;
  }
  if (name == "tojson" && args.empty()) return json_of(v);
  if (name == "string" && args.empty()) return text_of(v);
  if (name == "replace" && are_texts(args, 2))
    return replaced(string_of(v, "the filter replace"), args[0].get<std::string>(),
                    args[1].get<std::string>());
  if ((name == "first" || name == "last") && args.empty() && (v.is_array() || v.is_string()))
    return element(v, name == "first" ? 0 : -1);
  if (name == "join" && v.is_array() && (args.empty() || are_texts(args, 1))) {
    std::string all;
    for (size_t i = 0; i < v.size(); ++i)
      all += (i > 0 && !args.empty() ? args[0].get<std::string>() : "") + text_of(v[i]);
    return all;
  }
  refuse("the filter '" + name + "'");
}

Value method(const std::string& name, const Value& v, const std::vector<Value>& args) {
  if (v.is_string()) {
    const auto& text = v.get_ref<const std::string&>();
    if (name == "strip" && args.empty()) return trimmed(text);
    if ((name == "strip" || name == "lstrip" || name == "rstrip") &&
        (args.empty() || are_texts(args, 1)))
      return stripped(text, args.empty() ? " \t\n\r\f\v" : args[0].get<std::string>(),
                      name != "rstrip", name != "lstrip");
    if (name == "replace" && are_texts(args, 2))
      return replaced(text, args[0].get<std::string>(), args[1].get<std::string>());
    if (name == "split" && are_texts(args, 1)) return split(text, args[0].get<std::string>(), -1);
    if (name == "split" && args.size() == 2 && args[0].is_string() && args[1].is_number_integer())
      return split(text, args[0].get<std::string>(), args[1].get<int64_t>());
    if (args.size() == 1 && args[0].is_string()) {
      const auto& other = args[0].get_ref<const std::string&>();
      if (name == "startswith") return text.starts_with(other);
      if (name == "endswith") return text.ends_with(other);
    }
  }
  refuse("the method '" + name + "' of " + kind_of(v));
}

}  // namespace tessera::jinja
