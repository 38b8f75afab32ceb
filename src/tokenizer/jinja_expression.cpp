// By recursive descent, a function an operator's rank. An expression is a function of the
// variables, made of the functions of its operands.
#include "tokenizer/jinja_expression.h"

#include <cctype>
#include <charconv>
#include <map>

#include "base/fail.h"

namespace tessera::jinja {

bool Words::is(const std::string& value) const {
  return next().kind != Word::Kind::text && next().kind != Word::Kind::end && next().value == value;
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
  static const char* const pairs[] = {"==", "!=", "<=", ">=", "//"};
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (std::isspace(static_cast<unsigned char>(c))) {
      ++i;
    } else if (c == '\'' || c == '"') {
      i = cut_string(text, i);
    } else if (std::isalnum(static_cast<unsigned char>(c)) || c == '_') {
      const size_t begin = i;
      while (i < text.size() &&
             (std::isalnum(static_cast<unsigned char>(text[i])) || text[i] == '_'))
        ++i;
      const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
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
  const char quote = text[i++];
  std::string value;
  for (; i < text.size() && text[i] != quote; ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      value += text[i];
      continue;
    }
    const char c = text[++i];
    if (c == 'n')
      value += '\n';
    else if (c == 't')
      value += '\t';
    else if (c == 'r')
      value += '\r';
    else if (c == '\\' || c == '\'' || c == '"')
      value += c;
    else
      refuse(fmt::format("the escape '\\{}'", c));
  }
  if (i >= text.size()) fail(ErrorKind::io, "[chat template] line {}: a text does not end", line_);
  words_.push_back({Word::Kind::text, value});
  return i + 1;
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
    if (!w_.accept("if")) return value;
    Expression condition = parse_or(), other = [](State&) { return undefined(); };
    if (w_.accept("else")) other = parse();
    return [=](State& s) { return truth(condition(s)) ? value(s) : other(s); };
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
  Expression parse_comparison() {
    Expression a = parse_sum();
    for (;;) {
      count();
      if (w_.accept("is")) {
        const bool inverse = w_.accept("not");
        const std::string name = w_.name();
        a = [=](State& s) { return Value(test(name, a(s)) != inverse); };
        continue;
      }
      std::string op;
      for (const char* known : {"==", "!=", "<=", ">=", "<", ">", "in"}) {
        if (op.empty() && w_.accept(known)) op = known;
      }
      if (op.empty() && w_.accept("not")) {
        w_.expect("in");
        op = "not in";
      }
      if (op.empty()) return a;
      Expression b = parse_sum();
      a = [=](State& s) { return Value(compares(op, a(s), b(s))); };
    }
  }
  Expression parse_sum() { return parse_chain({"+", "-", "~"}, &ExpressionParser::parse_product); }
  Expression parse_product() {
    return parse_chain({"*", "//", "%"}, &ExpressionParser::parse_sign);
  }
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
  Expression parse_sign() {
    const Depth depth(*this);
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
      } else if (w_.accept("|")) {
        const std::string name = w_.name();
        std::vector<Expression> args;
        if (w_.accept("(")) args = parse_arguments();
        a = [=](State& s) { return filtered(name, a(s), values(args, s)); };
      } else {
        return a;
      }
    }
  }
  Expression parse_attribute(const Expression& of) {
    const std::string name = w_.name();
    if (!w_.accept("(")) return [=](State& s) { return element(of(s), name); };
    const std::vector<Expression> args = parse_arguments();
    return [=](State& s) { return method(name, of(s), values(args, s)); };
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
  /// A named argument counts as two, which nothing that is known takes.
  std::vector<Expression> parse_arguments() {
    std::vector<Expression> args;
    while (!w_.accept(")")) {
      if (!args.empty()) w_.expect(",");
      args.push_back(parse());
      if (w_.accept("=")) args.push_back(parse());
    }
    return args;
  }
  static std::vector<Value> values(const std::vector<Expression>& args, State& s) {
    std::vector<Value> result;
    for (const Expression& e : args) result.push_back(e(s));
    return result;
  }

  Expression parse_primary() {
    const Word word = w_.take();
    if (word.kind == Word::Kind::text) return [v = word.value](State&) { return Value(v); };
    if (word.kind == Word::Kind::number) return parse_number(word.value);
    if (word.kind == Word::Kind::name) return parse_name(word.value);
    if (word.value == "(") {
      Expression inner = parse();
      w_.expect(")");
      return inner;
    }
    if (word.value == "[") return parse_list();
    w_.wrong("an expression is missing before '" + word.value + "'");
  }
  Expression parse_number(const std::string& digits) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || *end != 0) refuse("the number '" + digits + "'");
    return [value](State&) { return Value(value); };
  }
  Expression parse_list() {
    std::vector<Expression> items;
    while (!w_.accept("]")) {
      if (!items.empty()) w_.expect(",");
      items.push_back(parse());
    }
    return [items](State& s) { return Value(values(items, s)); };
  }
  Expression parse_name(const std::string& name) {
    if (name == "true" || name == "True") return [](State&) { return Value(true); };
    if (name == "false" || name == "False") return [](State&) { return Value(false); };
    if (name == "none" || name == "None") return [](State&) { return Value(nullptr); };
    if (!w_.accept("(")) return [name](State& s) { return s.find(name); };
    if (name == "namespace") return parse_namespace();
    const std::vector<Expression> args = parse_arguments();
    if (name == "range") return [args](State& s) { return range(values(args, s)); };
    return [=](State& s) -> Value {
      if (name != "raise_exception" || args.size() != 1) refuse("the function '" + name + "'");
      fail(ErrorKind::usage, "[chat template] {}", text_of(args[0](s)));
    };
  }
  static Value range(const std::vector<Value>& args) {
    constexpr int64_t kMost = 100'000;
    for (const Value& v : args)
      TESSERA_REQUIRE(v.is_number_integer(), "[chat template] range() of {}", kind_of(v));
    if (args.empty() || args.size() > 2) refuse("range() with a step");
    const int64_t begin = args.size() == 2 ? args[0].get<int64_t>() : 0;
    const int64_t end = args.back().get<int64_t>();
    TESSERA_REQUIRE(end < kMost && begin > -kMost, "[chat template] range({}, {})", begin, end);
    Value all = Value::array();
    for (int64_t i = begin; i < end; ++i) all.push_back(i);
    return all;
  }
  Expression parse_namespace() {
    std::map<std::string, Expression> first;
    while (!w_.accept(")")) {
      if (!first.empty()) w_.expect(",");
      const std::string name = w_.name();
      w_.expect("=");
      first[name] = parse();
    }
    return [first](State& s) {
      Value result = Value::object();
      for (const auto& [name, value] : first) result[name] = value(s);
      return result;
    };
  }

  Words& w_;
  int depth_ = 0, operators_ = 0;
};

}  // namespace

Expression parse_expression(Words& words) { return ExpressionParser(words).parse(); }
Expression parse_plain_expression(Words& words) { return ExpressionParser(words).parse_plain(); }

}  // namespace tessera::jinja
