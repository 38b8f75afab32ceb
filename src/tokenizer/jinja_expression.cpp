// By recursive descent, a function an operator's rank. An expression is a function of the
// variables, made of the functions of its operands.
#include "tokenizer/jinja_expression.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/fail.h"
#include "tokenizer/utf8.h"

namespace tessera::jinja {

bool Words::is_at(size_t at, const std::string& value) const {
  if (at >= words_.size()) return false;
  const Word& word = words_[at];
  return word.kind != Word::Kind::text && word.kind != Word::Kind::end && word.value == value;
}
bool Words::accept(const std::string& value) {
  if (!is(value)) return false;
  ++at_;
  return true;
}
void Words::expect(const std::string& value) {
  if (!accept(value)) wrong("'" + value + "' is missing");
}
std::string Words::name() {
  if (next().kind != Word::Kind::name) wrong("a name is missing");
  return take().value;
}
void Words::wrong(const std::string& what) const {
  fail(ErrorKind::io, "[chat template] line {}: {} at '{}'", line_, what, next().value);
}

void Words::cut(const std::string& text) {
  static const char* const pairs[] = {"==", "!=", "<=", ">=", "//", "**"};
  const auto is = [&](size_t i, int (*kind)(int)) {
    return i < text.size() && kind(static_cast<unsigned char>(text[i])) != 0;
  };
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (is(i, std::isspace)) {
      ++i;
    } else if (c == '\'' || c == '"') {
      i = cut_string(text, i);
    } else if (is(i, std::isalnum) || c == '_') {
      const size_t begin = i;
      const bool digit = is(i, std::isdigit);
      const auto goes_on = [&] {
        if (is(i, std::isalnum) || (i < text.size() && text[i] == '_')) return true;
        // Of a number: a point before a digit, and the sign of an exponent.
        const bool is_point = i < text.size() && text[i] == '.' && is(i + 1, std::isdigit);
        const bool is_sign = i < text.size() && (text[i] == '-' || text[i] == '+') &&
                             (text[i - 1] == 'e' || text[i - 1] == 'E') && is(i + 1, std::isdigit);
        return digit && (is_point || is_sign);
      };
      while (goes_on()) ++i;
      words_.push_back(
          {digit ? Word::Kind::number : Word::Kind::name, text.substr(begin, i - begin)});
    } else {
      std::string sign(1, c);
      for (const char* pair : pairs) {
        if (text.compare(i, 2, pair) == 0) sign = pair;
      }
      words_.push_back({Word::Kind::sign, sign});
      i += sign.size();
    }
  }
  words_.push_back({});
}

size_t Words::cut_string(const std::string& text, size_t i) {
  static constexpr std::string_view kEscapes = "n\nt\tr\rb\bf\fv\va\a\\\\''\"\"";
  const char quote = text[i++];
  std::string value;
  for (; i < text.size() && text[i] != quote; ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      value += text[i];
      continue;
    }
    const char c = text[++i];
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    size_t at = 0;
    while (at < kEscapes.size() && kEscapes[at] != c) at += 2;
    if (digits > 0) {
      uint32_t point = 0;
      const char *begin = text.data() + i + 1, *end = begin + std::min(digits, text.size() - i - 1);
      const auto [stop, error] = std::from_chars(begin, end, point, 16);
      if (error != std::errc() || stop != begin + digits || point > 0x10FFFF ||
          (point >= 0xD800 && point < 0xE000))
        refuse(fmt::format("the escape '\\{}' with '{}'", c, std::string(begin, end)));
      append_utf8(point, value);
      i += digits;
    } else if (at < kEscapes.size()) {
      value += kEscapes[at + 1];
    } else {
      refuse(fmt::format("the escape '\\{}'", c));
    }
  }
  if (i >= text.size()) fail(ErrorKind::io, "[chat template] line {}: a text does not end", line_);
  words_.push_back({Word::Kind::text, value});
  return i + 1;
}

Arguments CallArguments::in(State& s) const {
  Arguments result;
  for (const Expression& e : values) result.values.push_back(e(s));
  for (const auto& [name, e] : named) result.named.emplace_back(name, e(s));
  return result;
}

namespace {

constexpr int kMostOperators = 1000;  ///< of an expression: each is a call within the next

class ExpressionParser {
 public:
  explicit ExpressionParser(Words& words) : w_(words) {}

  /// Without "A if B else C".
  Expression parse_plain() { return parse_or(); }
  Expression parse() {
    const Depth depth(*this);
    Expression value = parse_or();
    while (w_.accept("if")) {
      count();
      Expression condition = parse_or(), other = [](State&) { return undefined(); };
      if (w_.accept("else")) other = parse();
      value = [=](State& s) { return truth(condition(s)) ? value(s) : other(s); };
    }
    return value;
  }
  /// With commas: a list.
  Expression parse_tuple() {
    Expression first = parse();
    if (!w_.is(",")) return first;
    std::vector<Expression> items = {first};
    while (w_.accept(",")) {
      if (w_.at_end() || w_.is(")")) break;
      items.push_back(parse());
    }
    return list_of(std::move(items));
  }
  CallArguments parse_arguments() {
    CallArguments args;
    bool first = true;
    while (!w_.accept(")")) {
      if (!std::exchange(first, false)) {
        w_.expect(",");
        if (w_.accept(")")) break;
      }
      if (w_.is("*") || w_.is("**")) refuse("arguments from a list or an object");
      if (w_.next().kind == Word::Kind::name && w_.follows("=")) {
        const std::string name = w_.name();
        w_.expect("=");
        args.named.emplace_back(name, parse());
      } else {
        args.values.push_back(parse());
      }
    }
    return args;
  }

 private:
  struct Depth {
    explicit Depth(ExpressionParser& parser) : p(parser) {
      if (++p.depth_ > kDeepest) refuse(fmt::format("nesting of more than {} levels", kDeepest));
    }
    ~Depth() { --p.depth_; }
    ExpressionParser& p;
  };

  void count() {
    if (++operators_ > kMostOperators)
      refuse(fmt::format("an expression of more than {} operators", kMostOperators));
  }
  static Expression list_of(std::vector<Expression> items) {
    return [items = std::move(items)](State& s) {
      Value list = Value::array();
      for (const Expression& item : items) list.push_back(item(s));
      return list;
    };
  }

  Expression parse_or() {
    Expression a = parse_and();
    while (w_.accept("or")) {
      count();
      Expression b = parse_and();
      a = [a, b](State& s) {
        Value v = a(s);
        return truth(v) ? v : b(s);
      };
    }
    return a;
  }
  Expression parse_and() {
    Expression a = parse_not();
    while (w_.accept("and")) {
      count();
      Expression b = parse_not();
      a = [a, b](State& s) {
        Value v = a(s);
        return truth(v) ? b(s) : v;
      };
    }
    return a;
  }
  Expression parse_not() {
    const Depth depth(*this);
    if (!w_.accept("not")) return parse_comparison();
    Expression a = parse_not();
    return [a](State& s) { return Value(!truth(a(s))); };
  }
  /// "a < b < c" is "a < b and b < c".
  Expression parse_comparison() {
    const Expression first = parse_sum();
    std::vector<std::pair<std::string, Expression>> rest;
    for (;;) {
      count();
      std::string op;
      for (const char* known : {"==", "!=", "<=", ">=", "<", ">", "in"}) {
        if (op.empty() && w_.accept(known)) op = known;
      }
      if (op.empty() && w_.is("not") && w_.follows("in")) {
        w_.expect("not");
        w_.expect("in");
        op = "not in";
      }
      if (op.empty()) break;
      rest.emplace_back(op, parse_sum());
    }
    if (rest.empty()) return first;
    return [first, rest](State& s) {
      Value a = first(s);
      for (const auto& [op, e] : rest) {
        Value b = e(s);
        if (!compares(op, a, b)) return Value(false);
        a = std::move(b);
      }
      return Value(true);
    };
  }
  Expression parse_sum() { return parse_chain({"+", "-"}, &ExpressionParser::parse_join); }
  Expression parse_join() { return parse_chain({"~"}, &ExpressionParser::parse_product); }
  Expression parse_product() {
    return parse_chain({"*", "//", "/", "%"}, &ExpressionParser::parse_power);
  }
  Expression parse_power() { return parse_chain({"**"}, &ExpressionParser::parse_filtered); }
  Expression parse_chain(const std::vector<std::string>& signs,
                         Expression (ExpressionParser::*part)()) {
    Expression a = (this->*part)();
    for (;;) {
      std::string op;
      for (const std::string& sign : signs) {
        if (op.empty() && w_.accept(sign)) op = sign;
      }
      if (op.empty()) return a;
      count();
      Expression b = (this->*part)();
      a = [=](State& s) { return arithmetic(op, a(s), b(s)); };
    }
  }

  /// An operand with its filters and tests.
  Expression parse_filtered() {
    Expression a = parse_sign();
    for (;;) {
      count();
      if (w_.accept("|")) {
        const std::string name = w_.name();
        const CallArguments args = w_.accept("(") ? parse_arguments() : CallArguments();
        a = [=](State& s) { return filtered(name, a(s), args.in(s)); };
      } else if (w_.accept("is")) {
        a = parse_test(a);
      } else {
        return a;
      }
    }
  }
  Expression parse_test(const Expression& a) {
    const bool inverse = w_.accept("not");
    const std::string name = w_.at_end() ? w_.name() : w_.take().value;
    CallArguments args;
    static const char* const ends[] = {"and", "else", "if", "in", "is", "not", "or"};
    const bool is_word =
        w_.next().kind != Word::Kind::sign && w_.next().kind != Word::Kind::end &&
        std::none_of(std::begin(ends), std::end(ends), [&](const char* end) { return w_.is(end); });
    if (w_.accept("("))
      args = parse_arguments();
    else if (is_word || w_.is("["))
      args.values.push_back(parse_sign());
    return [=](State& s) { return Value(test(name, a(s), args.in(s)) != inverse); };
  }
  Expression parse_sign() {
    const Depth depth(*this);
    if (w_.accept("+")) return parse_sign();
    if (!w_.accept("-")) return parse_postfix();
    Expression a = parse_sign();
    return [a](State& s) { return arithmetic("-", 0, a(s)); };
  }

  Expression parse_postfix() {
    Expression a = parse_primary();
    for (;;) {
      count();
      if (w_.accept(".")) {
        a = parse_attribute(a);
      } else if (w_.accept("[")) {
        a = parse_index(a);
      } else {
        return a;
      }
    }
  }
  Expression parse_attribute(const Expression& of) {
    if (w_.next().kind == Word::Kind::number)
      return [of, at = parse_primary()](State& s) { return element(of(s), at(s)); };
    const std::string name = w_.name();
    if (!w_.accept("(")) return [=](State& s) { return element(of(s), name); };
    const CallArguments args = parse_arguments();
    return [=](State& s) { return method(name, of(s), args.in(s)); };
  }
  Expression parse_index(const Expression& of) {
    std::vector<Expression> parts;
    bool is_slice = false;
    const auto part = [&] {
      const bool none = w_.is(":") || w_.is("]");
      parts.push_back(none ? Expression([](State&) { return Value(nullptr); }) : parse());
    };
    part();
    while (w_.accept(":")) {
      is_slice = true;
      part();
    }
    w_.expect("]");
    if (!is_slice) return [of, at = parts[0]](State& s) { return element(of(s), at(s)); };
    if (parts.size() > 3) w_.wrong("a slice has more than three parts");
    while (parts.size() < 3) parts.emplace_back([](State&) { return Value(nullptr); });
    return [=](State& s) { return slice(of(s), parts[0](s), parts[1](s), parts[2](s)); };
  }

  Expression parse_primary() {
    const Word word = w_.take();
    if (word.kind == Word::Kind::text) {
      std::string text = word.value;
      while (w_.next().kind == Word::Kind::text) text += w_.take().value;
      return [text](State&) { return Value(text); };
    }
    if (word.kind == Word::Kind::number) return parse_number(word.value);
    if (word.kind == Word::Kind::name) return parse_name(word.value);
    if (word.value == "(") {
      if (w_.accept(")")) return list_of({});
      Expression inner = parse_tuple();
      w_.expect(")");
      return inner;
    }
    if (word.value == "[") return parse_list();
    if (word.value == "{") return parse_object();
    w_.wrong("an expression is missing before '" + word.value + "'");
  }
  static Expression parse_number(std::string digits) {
    std::erase(digits, '_');
    const char *begin = digits.data(), *end = begin + digits.size();
    int64_t whole = 0;
    double real = 0;
    if (const auto read = std::from_chars(begin, end, whole);
        read.ec == std::errc() && read.ptr == end)
      return [whole](State&) { return Value(whole); };
    const auto read = std::from_chars(begin, end, real);
    const bool is_whole = digits.find_first_not_of("0123456789") == digits.npos;
    if (is_whole || read.ec != std::errc() || read.ptr != end)
      refuse("the number '" + digits + "'");
    return [real](State&) { return Value(real); };
  }
  Expression parse_list() {
    std::vector<Expression> items;
    while (!w_.accept("]")) {
      if (!items.empty()) {
        w_.expect(",");
        if (w_.accept("]")) break;
      }
      items.push_back(parse());
    }
    return list_of(std::move(items));
  }
  Expression parse_object() {
    std::vector<std::pair<Expression, Expression>> items;
    while (!w_.accept("}")) {
      if (!items.empty()) {
        w_.expect(",");
        if (w_.accept("}")) break;
      }
      Expression key = parse();
      w_.expect(":");
      items.emplace_back(std::move(key), parse());
    }
    return [items](State& s) {
      Value object = Value::object();
      for (const auto& [key, value] : items) object[text_of(key(s))] = value(s);
      return object;
    };
  }
  Expression parse_name(const std::string& name) {
    if (name == "true" || name == "True") return [](State&) { return Value(true); };
    if (name == "false" || name == "False") return [](State&) { return Value(false); };
    if (name == "none" || name == "None") return [](State&) { return Value(nullptr); };
    if (!w_.accept("(")) return [name](State& s) { return s.find(name); };
    const CallArguments args = parse_arguments();
    return [=](State& s) -> Value {
      if (const Macro* macro = s.find_macro(name)) return (*macro)(s, args.in(s));
      std::optional<Value> value = function(name, args.in(s));
      if (!value) refuse("the function '" + name + "'");
      return *value;
    };
  }

  Words& w_;
  int depth_ = 0, operators_ = 0;
};

}  // namespace

Expression parse_expression(Words& words) { return ExpressionParser(words).parse_tuple(); }
Expression parse_single_expression(Words& words) { return ExpressionParser(words).parse(); }
Expression parse_plain_expression(Words& words) { return ExpressionParser(words).parse_plain(); }
CallArguments parse_call(Words& words) { return ExpressionParser(words).parse_arguments(); }

}  // namespace tessera::jinja
