// Values are those of Python: what is written, how numbers are rounded, what an index means.
#include "tokenizer/jinja_values.h"

#include <algorithm>
#include <cmath>

#include "base/fail.h"

namespace tessera::jinja {

namespace {

/// Whole numbers that Python has: truth values count as 0 and 1.
std::optional<int64_t> whole_of(const Value& v) {
  if (v.is_boolean()) return v.get<bool>() ? 1 : 0;
  return v.is_number_integer() ? std::optional(v.get<int64_t>()) : std::nullopt;
}

bool is_numeric(const Value& v) { return v.is_number() || v.is_boolean(); }

double real_of(const Value& v) {
  return v.is_boolean() ? (v.get<bool>() ? 1 : 0) : v.get<double>();
}

std::string repr_of_real(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", x);
  if (text.find_first_of(".e") == text.npos) text += ".0";
  return text;
}

std::string repr_of_text(const std::string& text) {
  const bool doubles = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = doubles ? '"' : '\'';
  std::string result(1, quote);
  for (const char c : text) {
    if (c == quote || c == '\\')
      (result += '\\') += c;
    else if (c == '\n' || c == '\r' || c == '\t')
      (result += '\\') += c == '\n' ? 'n' : c == '\r' ? 'r' : 't';
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      result += c;
  }
  return result + quote;
}

bool is_in(const Value& a, const Value& b) {
  if (is_undefined(b)) return false;
  if (b.is_string()) {
    TESSERA_REQUIRE(a.is_string(), "[chat template] the search of {} in a text", kind_of(a));
    return b.get_ref<const std::string&>().find(a.get_ref<const std::string&>()) !=
           std::string::npos;
  }
  if (b.is_object()) return a.is_string() && b.contains(a.get_ref<const std::string&>());
  TESSERA_REQUIRE(b.is_array(), "[chat template] 'in' {}", kind_of(b));
  return std::any_of(b.begin(), b.end(), [&](const Value& v) { return equal(a, v); });
}

std::string repeated(const std::string& text, int64_t times) {
  const size_t n = static_cast<size_t>(std::max<int64_t>(times, 0));
  TESSERA_REQUIRE(text.empty() || n <= kMostText / text.size(),
                  "[chat template] a text has more than {} bytes", kMostText);
  std::string result;
  for (size_t i = 0; i < n; ++i) result += text;
  return result;
}

Value whole_arithmetic(const std::string& op, int64_t x, int64_t y) {
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
  if (op == "**") {
    TESSERA_REQUIRE(y >= 0 && y < 64, "[chat template] {} ** {}", x, y);
    result = 1;
    for (int64_t i = 0; i < y; ++i)
      overflow = __builtin_mul_overflow(result, x, &result) || overflow;
  }
  TESSERA_REQUIRE(!overflow, "[chat template] {} {} {} is too large", x, op, y);
  return result;
}

Value real_arithmetic(const std::string& op, double x, double y) {
  TESSERA_REQUIRE(y != 0 || (op != "/" && op != "//" && op != "%"), "[chat template] {} {} 0", x,
                  op);
  if (op == "+") return x + y;
  if (op == "-") return x - y;
  if (op == "*") return x * y;
  if (op == "/") return x / y;
  if (op == "//") return std::floor(x / y);
  if (op == "**") return std::pow(x, y);
  return x - y * std::floor(x / y);
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

std::string repr_of(const Value& v) {
  if (v.is_string()) return repr_of_text(v.get_ref<const std::string&>());
  if (!v.is_structured()) return text_of(v);
  std::string all;
  for (const auto& [key, item] : v.items()) {
    if (!all.empty()) all += ", ";
    if (v.is_object()) all += repr_of_text(key) + ": ";
    all += repr_of(item);
    TESSERA_REQUIRE(all.size() <= kMostText, "[chat template] a text has more than {} bytes",
                    kMostText);
  }
  return v.is_object() ? "{" + all + "}" : "[" + all + "]";
}

std::string text_of(const Value& v) {
  if (is_undefined(v)) return "";
  if (v.is_null()) return "None";
  if (v.is_boolean()) return v.get<bool>() ? "True" : "False";
  if (v.is_string()) return v.get<std::string>();
  if (v.is_number_integer()) return fmt::format("{}", v.get<int64_t>());
  return v.is_number() ? repr_of_real(v.get<double>()) : repr_of(v);
}

[[noreturn]] void refuse(const std::string& what) {
  fail(ErrorKind::unsupported,
       "[chat template] {} is not understood (tessera/chat_template.h lists what is); write the "
       "conversations as prompt and completion",
       what);
}

std::vector<std::string> characters(const std::string& text) {
  std::vector<std::string> all;
  for (const char c : text) {
    if (all.empty() || (static_cast<unsigned char>(c) & 0xC0) != 0x80) all.emplace_back();
    all.back() += c;
  }
  return all;
}

std::vector<Value> items_of(const Value& v, const char* what) {
  std::vector<Value> all;
  if (is_undefined(v)) return all;
  TESSERA_REQUIRE(v.is_structured() || v.is_string(), "[chat template] {} {}", what, kind_of(v));
  if (v.is_string())
    for (std::string& c : characters(v.get_ref<const std::string&>()))
      all.emplace_back(std::move(c));
  else
    for (const auto& [key, item] : v.items()) all.push_back(v.is_object() ? Value(key) : item);
  return all;
}

Value arithmetic(const std::string& op, const Value& a, const Value& b) {
  if (op == "~" || (op == "+" && a.is_string() && b.is_string())) {
    std::string x = text_of(a), y = text_of(b);
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
  if (op == "*" && a.is_string() && whole_of(b))
    return repeated(a.get_ref<const std::string&>(), *whole_of(b));
  if (op == "%" && a.is_string()) {
    Arguments args;
    args.values = b.is_array() ? b.get<std::vector<Value>>() : std::vector<Value>{b};
    return filtered("format", a, args);
  }
  const std::optional<int64_t> x = whole_of(a), y = whole_of(b);
  if (x && y && op != "/") return whole_arithmetic(op, *x, *y);
  TESSERA_REQUIRE(is_numeric(a) && is_numeric(b), "[chat template] {} {} {}", kind_of(a), op,
                  kind_of(b));
  return real_arithmetic(op, real_of(a), real_of(b));
}

bool equal(const Value& a, const Value& b) {
  if (is_undefined(a) || is_undefined(b)) return is_undefined(a) == is_undefined(b);
  if (is_numeric(a) && is_numeric(b)) return real_of(a) == real_of(b);
  if (!a.is_structured() || !b.is_structured() || a.size() != b.size() || a.type() != b.type())
    return a == b;
  const auto same = [&](const auto& item) {
    if (a.is_array()) return equal(item.value(), b[std::stoul(item.key())]);
    return b.contains(item.key()) && equal(item.value(), b.at(item.key()));
  };
  const auto all = a.items();
  return std::all_of(all.begin(), all.end(), same);
}

bool compares(const std::string& op, const Value& a, const Value& b) {
  if (op == "in") return is_in(a, b);
  if (op == "not in") return !is_in(a, b);
  if (op == "==" || op == "!=") return equal(a, b) == (op == "==");
  if (op == ">") return compares("<", b, a);
  if (op == ">=") return compares("<=", b, a);
  if (is_numeric(a) && is_numeric(b))
    return op == "<" ? real_of(a) < real_of(b) : real_of(a) <= real_of(b);
  if (a.is_array() && b.is_array()) {
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
      if (!equal(a[i], b[i])) return compares("<", a[i], b[i]);
    return op == "<" ? a.size() < b.size() : a.size() <= b.size();
  }
  TESSERA_REQUIRE(a.is_string() && b.is_string(), "[chat template] {} {} {}", kind_of(a), op,
                  kind_of(b));
  return op == "<" ? a < b : a <= b;
}

Value element(const Value& of, const Value& at) {
  if (of.is_string() && at.is_number_integer())
    return element(Value(characters(of.get_ref<const std::string&>())), at);
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
    for (const Value& c :
         slice(Value(characters(of.get_ref<const std::string&>())), from, to, step))
      text += c.get<std::string>();
    return text;
  }
  const int64_t n = std::ssize(of), by = step.is_number_integer() ? step.get<int64_t>() : 1;
  TESSERA_REQUIRE(by != 0, "[chat template] a slice with step 0");
  const int64_t least = by < 0 ? -1 : 0, most = by < 0 ? n - 1 : n;
  const auto bound = [&](const Value& v, int64_t otherwise) {
    if (!v.is_number_integer()) return otherwise;
    const int64_t i = v.get<int64_t>();
    return std::clamp<int64_t>(i < 0 ? std::max<int64_t>(i, -n - 1) + n : i, least, most);
  };
  const int64_t begin = bound(from, by < 0 ? most : least), end = bound(to, by < 0 ? least : most);
  Value result = Value::array();
  const int64_t stride = std::clamp<int64_t>(by, -n - 1, n + 1);
  for (int64_t i = begin; by < 0 ? i > end : i < end; i += stride)
    result.push_back(of[static_cast<size_t>(i)]);
  return result;
}

Bound::Bound(const std::string& what, const Arguments& args, std::vector<const char*> names)
    : what_(what), names_(std::move(names)), values_(names_.size(), undefined()) {
  TESSERA_REQUIRE(args.values.size() <= names_.size(),
                  "[chat template] {} has {} arguments, not {}", what, names_.size(),
                  args.values.size());
  std::copy(args.values.begin(), args.values.end(), values_.begin());
  for (const auto& [name, value] : args.named) {
    const auto it = std::find(names_.begin(), names_.end(), name);
    TESSERA_REQUIRE(it != names_.end(), "[chat template] {} has no argument '{}'", what, name);
    values_[static_cast<size_t>(it - names_.begin())] = value;
  }
}

void Bound::wrong(size_t i, const char* wanted) const {
  fail(ErrorKind::usage, "[chat template] {}: '{}' is {}, not {}", what_, names_[i],
       kind_of(values_[i]), wanted);
}

const std::string& Bound::text(size_t i) const {
  if (!values_[i].is_string()) wrong(i, "a text");
  return values_[i].get_ref<const std::string&>();
}

std::string Bound::text(size_t i, const char* otherwise) const {
  return has(i) ? text(i) : otherwise;
}

int64_t Bound::whole(size_t i, std::optional<int64_t> otherwise) const {
  if (!has(i) && otherwise) return *otherwise;
  if (!values_[i].is_number_integer()) wrong(i, "a whole number");
  return values_[i].get<int64_t>();
}

}  // namespace tessera::jinja
