// A template is cut into texts, expressions and statements; each becomes a function of the
// variables. Names that are not known fail when they are called, not when they are parsed.
#include "tokenizer/jinja.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/fail.h"

namespace tessera::jinja {

namespace {

constexpr size_t kMostText = size_t{1} << 26;
constexpr int kDeepest = 64;          ///< nested expressions and blocks
constexpr int kMostOperators = 1000;  ///< of an expression: each is a call within the next

using Expression = std::function<Value(State&)>;

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
  require(v.is_number_integer(), "[chat template] a {} is written as text", kind_of(v));
  return fmt::format("{}", v.get<int64_t>());
}

const std::string& string_of(const Value& v, const char* what) {
  require(v.is_string(), "[chat template] {} of {}, which is no text", what, kind_of(v));
  return v.get_ref<const std::string&>();
}

std::string trimmed(const std::string& text) {
  const auto is_space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  auto begin = std::find_if_not(text.begin(), text.end(), is_space);
  auto end = std::find_if_not(text.rbegin(), std::make_reverse_iterator(begin), is_space).base();
  return {begin, end};
}

[[noreturn]] void refuse(const std::string& what) {
  fail(ErrorKind::unsupported,
       "[chat template] {} is not understood (tessera/chat_template.h lists what is); write the "
       "conversations as prompt and completion",
       what);
}

// ------------------------------------------------------------------------------------ arithmetic
Value arithmetic(const std::string& op, const Value& a, const Value& b) {
  if (op == "~") return text_of(a) + text_of(b);
  if (op == "+" && a.is_string() && b.is_string()) {
    const auto &x = a.get_ref<const std::string&>(), &y = b.get_ref<const std::string&>();
    require(x.size() + y.size() <= kMostText, "[chat template] a text has more than {} bytes",
            kMostText);
    return x + y;
  }
  if (op == "+" && a.is_array() && b.is_array()) {
    Value all = a;
    require(a.size() + b.size() <= kMostText, "[chat template] a list has more than {} elements",
            kMostText);
    for (const Value& v : b) all.push_back(v);
    return all;
  }
  require(a.is_number_integer() && b.is_number_integer(), "[chat template] {} {} {}", kind_of(a),
          op, kind_of(b));
  const auto x = a.get<int64_t>(), y = b.get<int64_t>();
  int64_t result = 0;
  bool overflow = false;
  if (op == "+") overflow = __builtin_add_overflow(x, y, &result);
  if (op == "-") overflow = __builtin_sub_overflow(x, y, &result);
  if (op == "*") overflow = __builtin_mul_overflow(x, y, &result);
  if (op == "//" || op == "%") {
    require(y > 0, "[chat template] {} {} {}", x, op, y);
    const int64_t rest = ((x % y) + y) % y;
    result = op == "%" ? rest : (x - rest) / y;
  }
  require(!overflow, "[chat template] {} {} {} is too large", x, op, y);
  return result;
}

bool is_in(const Value& a, const Value& b) {
  if (b.is_string())
    return b.get_ref<const std::string&>().find(string_of(a, "the search")) != std::string::npos;
  if (b.is_object()) return a.is_string() && b.contains(a.get_ref<const std::string&>());
  require(b.is_array(), "[chat template] 'in' {}", kind_of(b));
  return std::find(b.begin(), b.end(), a) != b.end();
}

bool compares(const std::string& op, const Value& a, const Value& b) {
  if (op == "in") return is_in(a, b);
  if (op == "not in") return !is_in(a, b);
  if (op == "==" || op == "!=") {
    const bool known = !is_undefined(a) && !is_undefined(b);
    const bool equal = known ? a == b : is_undefined(a) == is_undefined(b);
    return equal == (op == "==");
  }
  require((a.is_number() && b.is_number()) || (a.is_string() && b.is_string()),
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

Value element(const Value& of, const Value& at) {
  if (of.is_object() && at.is_string()) {
    const auto it = of.find(at.get_ref<const std::string&>());
    return it == of.end() ? undefined() : *it;
  }
  if (of.is_array() && at.is_number_integer()) {
    int64_t i = at.get<int64_t>();
    if (i < 0) i += std::ssize(of);
    return i < 0 || i >= std::ssize(of) ? undefined() : of[static_cast<size_t>(i)];
  }
  require(!is_undefined(of), "[chat template] an element of what is undefined");
  return undefined();
}

Value slice(const Value& of, const Value& from, const Value& to, const Value& step) {
  require(of.is_array() || of.is_string(), "[chat template] a slice of {}", kind_of(of));
  const int64_t n = of.is_array() ? std::ssize(of) : std::ssize(of.get_ref<const std::string&>());
  const int64_t by = step.is_number_integer() ? step.get<int64_t>() : 1;
  if (by != 1 && !(by == -1 && from.is_null() && to.is_null() && of.is_array()))
    refuse(fmt::format("a slice with step {}", by));
  const auto bound = [&](const Value& v, int64_t otherwise) {
    if (!v.is_number_integer()) return otherwise;
    const int64_t i = v.get<int64_t>();
    return std::clamp<int64_t>(i < 0 ? std::max<int64_t>(i, -n) + n : i, 0, n);
  };
  const int64_t begin = bound(from, 0), end = std::max(begin, bound(to, n));
  if (of.is_string())
    return of.get_ref<const std::string&>().substr(static_cast<size_t>(begin),
                                                   static_cast<size_t>(end - begin));
  Value result = Value::array();
  for (int64_t i = begin; i < end; ++i) result.push_back(of[static_cast<size_t>(i)]);
  if (by == -1) std::reverse(result.begin(), result.end());
  return result;
}

Value filtered(const std::string& name, const Value& v, const std::vector<Value>& args) {
  if (name == "trim" && args.empty()) return trimmed(string_of(v, "the filter trim"));
  if (name == "length" && args.empty()) {
    require(v.is_string() || v.is_array() || v.is_object(), "[chat template] the length of {}",
            kind_of(v));
    return static_cast<int64_t>(v.is_string() ? v.get_ref<const std::string&>().size() : v.size());
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
  refuse("the filter '" + name + "'");
}

Value method(const std::string& name, const Value& v, const std::vector<Value>& args) {
  if (v.is_string()) {
    const auto& text = v.get_ref<const std::string&>();
    if (name == "strip" && args.empty()) return trimmed(text);
    if (args.size() == 1 && args[0].is_string()) {
      const auto& other = args[0].get_ref<const std::string&>();
      if (name == "startswith") return text.starts_with(other);
      if (name == "endswith") return text.ends_with(other);
    }
  }
  refuse("the method '" + name + "' of " + kind_of(v));
}

// ---------------------------------------------------------------------------------------- tokens
struct Word {
  enum class Kind { name, text, number, sign, end } kind = Kind::end;
  std::string value;
};

class Words {
 public:
  Words(const std::string& text, int line) : line_(line) { cut(text); }

  const Word& next() const { return words_[at_]; }
  bool at_end() const { return next().kind == Word::Kind::end; }
  Word take() { return words_[at_ + 1 < words_.size() ? at_++ : at_]; }
  bool is(const std::string& value) const {
    return next().kind != Word::Kind::text && next().kind != Word::Kind::end &&
           next().value == value;
  }
  bool accept(const std::string& value) {
    if (!is(value)) return false;
    ++at_;
    return true;
  }
  void expect(const std::string& value) {
    if (!accept(value)) wrong("'" + value + "' is missing");
  }
  std::string name() {
    if (next().kind != Word::Kind::name) wrong("a name is missing");
    return take().value;
  }
  [[noreturn]] void wrong(const std::string& what) const {
    fail(ErrorKind::io, "[chat template] line {}: {} at '{}'", line_, what, next().value);
  }

 private:
  void cut(const std::string& text) {
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
  size_t cut_string(const std::string& text, size_t i) {
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
    if (i >= text.size())
      fail(ErrorKind::io, "[chat template] line {}: a text does not end", line_);
    words_.push_back({Word::Kind::text, value});
    return i + 1;
  }

  int line_;
  std::vector<Word> words_;
  size_t at_ = 0;
};

// ----------------------------------------------------------------------------------- expressions
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
    return [=](State& s) -> Value {
      if (name != "raise_exception" || args.size() != 1) refuse("the function '" + name + "'");
      fail(ErrorKind::usage, "[chat template] {}", text_of(args[0](s)));
    };
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

// ------------------------------------------------------------------------------------ statements
/// A piece of a template.
struct Piece {
  enum class Kind { text, expression, statement } kind = Kind::text;
  std::string value;
  int line = 1;
};

/// Cuts a template; blanks and line breaks around statements are gone.
class Cutter {
 public:
  explicit Cutter(const std::string& text) : text_(text) {}

  std::vector<Piece> cut() {
    for (size_t at = 0;;) {
      size_t open = text_.find('{', at);
      while (open != std::string::npos && (open + 1 == text_.size() || !is_mark(text_[open + 1])))
        open = text_.find('{', open + 1);
      if (open == std::string::npos) {
        add_text(text_.substr(at));
        return std::move(pieces_);
      }
      add_text(text_.substr(at, open - at));
      at = cut_tag(open);
    }
  }

 private:
  static bool is_mark(char c) { return c == '{' || c == '%' || c == '#'; }

  void add_text(std::string text) {
    const int lines = static_cast<int>(std::count(text.begin(), text.end(), '\n'));
    if (strip_) text.erase(0, text.find_first_not_of(" \t\r\n"));
    if (drop_newline_ && text.starts_with('\n')) text.erase(0, 1);
    strip_ = drop_newline_ = false;
    pieces_.push_back({Piece::Kind::text, text, line_});
    line_ += lines;
  }
  /// Cuts the tag that begins at `open`; returns where it ends.
  size_t cut_tag(size_t open) {
    const char mark = text_[open + 1];
    const std::string close = mark == '{' ? "}}" : mark == '%' ? "%}" : "#}";
    const size_t end = close_of(open + 2, close, mark != '#');
    if (end == std::string::npos)
      fail(ErrorKind::io, "[chat template] line {}: '{{{}' is not closed", line_, mark);
    std::string inner = text_.substr(open + 2, end - open - 2);
    const bool before = inner.starts_with('-'), after = inner.ends_with('-');
    const bool keeps_before = inner.starts_with('+'),
               keeps_after = mark != '{' && inner.ends_with('+');
    if (before || keeps_before) inner.erase(0, 1);
    if ((after || keeps_after) && !inner.empty()) inner.pop_back();
    if (before || (mark != '{' && !keeps_before && begins_line(open))) strip_before(before);
    const int lines = static_cast<int>(std::count(inner.begin(), inner.end(), '\n'));
    if (mark != '#')
      pieces_.push_back(
          {mark == '{' ? Piece::Kind::expression : Piece::Kind::statement, inner, line_});
    line_ += lines;
    strip_ = after;
    drop_newline_ = !after && !keeps_after && mark != '{';
    return end + 2;
  }
  size_t close_of(size_t from, const std::string& close, bool has_strings) const {
    char quote = 0;
    for (size_t i = from; i < text_.size(); ++i) {
      const char c = text_[i];
      if (quote != 0) {
        if (c == '\\')
          ++i;
        else if (c == quote)
          quote = 0;
      } else if (has_strings && (c == '\'' || c == '"')) {
        quote = c;
      } else if (text_.compare(i, 2, close) == 0) {
        return i;
      }
    }
    return std::string::npos;
  }
  /// Whether only blanks are before `open` in its line.
  bool begins_line(size_t open) const {
    while (open > 0 && (text_[open - 1] == ' ' || text_[open - 1] == '\t')) --open;
    return open == 0 || text_[open - 1] == '\n';
  }
  /// Removes blanks at the end of the text before, with line breaks if `all`.
  void strip_before(bool all) {
    std::string& text = pieces_.back().value;
    const size_t last = text.find_last_not_of(all ? " \t\r\n" : " \t");
    text.resize(last == std::string::npos ? 0 : last + 1);
  }

  const std::string& text_;
  std::vector<Piece> pieces_;
  int line_ = 1;
  bool strip_ = false, drop_newline_ = false;
};

class Parser {
 public:
  explicit Parser(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {}

  Statement parse() {
    Statement all = block({});
    if (at_ < pieces_.size())
      fail(ErrorKind::io, "[chat template] line {}: '{}' has no beginning", pieces_[at_].line,
           first_word(pieces_[at_]));
    return all;
  }

 private:
  static std::string first_word(const Piece& piece) {
    if (piece.kind != Piece::Kind::statement) return "";
    Words words(piece.value, piece.line);
    return words.at_end() ? "" : words.next().value;
  }
  static Expression whole(Words& words) {
    Expression e = ExpressionParser(words).parse();
    if (!words.at_end()) words.wrong("the statement should end");
    return e;
  }

  /// Up to a statement that begins with one of `ends`, which is left.
  Statement block(const std::vector<std::string>& ends) {
    if (++depth_ > kDeepest) refuse(fmt::format("nesting of more than {} levels", kDeepest));
    std::vector<Statement> all;
    const int line = at_ < pieces_.size() ? pieces_[at_].line : 0;
    while (at_ < pieces_.size()) {
      const Piece& piece = pieces_[at_];
      const std::string word = first_word(piece);
      const bool closes = word.starts_with("end") || word == "else" || word == "elif";
      if (piece.kind == Piece::Kind::statement && closes) break;
      ++at_;
      all.push_back(statement(piece, word));
    }
    if (!ends.empty() &&
        (at_ == pieces_.size() ||
         std::find(ends.begin(), ends.end(), first_word(pieces_[at_])) == ends.end()))
      fail(ErrorKind::io, "[chat template] line {}: '{}' is missing", line, ends.back());
    --depth_;
    return [all](State& s) {
      for (const Statement& one : all) one(s);
    };
  }

  Statement statement(const Piece& piece, const std::string& word) {
    if (piece.kind == Piece::Kind::text) return [text = piece.value](State& s) { s.write(text); };
    Words words(piece.value, piece.line);
    if (piece.kind == Piece::Kind::expression)
      return [e = whole(words)](State& s) { s.write(text_of(e(s))); };
    words.take();
    if (word == "for") return parse_for(words);
    if (word == "if") return parse_if(words);
    if (word == "set") return parse_set(words);
    refuse("the statement '" + word + "'");
  }

  Statement parse_set(Words& words) {
    const std::string name = words.name();
    const std::string attribute = words.accept(".") ? words.name() : "";
    if (words.at_end()) refuse("a block of {% set %}");
    words.expect("=");
    Expression value = whole(words);
    if (attribute.empty()) return [=](State& s) { s.set(name, value(s)); };
    return [=](State& s) { s.set_attribute(name, attribute, value(s)); };
  }

  Statement parse_if(Words& words) {
    Expression condition = whole(words);
    Statement then = block({"elif", "else", "endif"}), otherwise = [](State&) {};
    const Piece& piece = pieces_[at_++];
    Words next(piece.value, piece.line);
    const std::string word = next.take().value;
    if (word == "elif") {
      if (++depth_ > kDeepest) refuse(fmt::format("more than {} branches", kDeepest));
      otherwise = parse_if(next);
      --depth_;
    } else if (word == "else") {
      otherwise = block({"endif"});
      ++at_;
    }
    return [=](State& s) { (truth(condition(s)) ? then : otherwise)(s); };
  }

  Statement parse_for(Words& words) {
    const std::string name = words.name();
    if (words.is(",")) refuse("a loop over several names");
    words.expect("in");
    Expression list = ExpressionParser(words).parse_plain();
    if (!words.at_end()) refuse("a loop with a condition");
    Statement body = block({"endfor"});
    ++at_;
    return [=](State& s) {
      const Value all = list(s);
      require(all.is_array(), "[chat template] a loop over {}", kind_of(all));
      const auto n = std::ssize(all);
      for (int64_t i = 0; i < n; ++i) {
        s.push();
        s.set(name, all[static_cast<size_t>(i)]);
        s.set("loop", {{"first", i == 0},
                       {"last", i + 1 == n},
                       {"index", i + 1},
                       {"index0", i},
                       {"length", n}});
        body(s);
        s.pop();
      }
    };
  }

  std::vector<Piece> pieces_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

Value State::find(const std::string& name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto it = scope->find(name); it != scope->end()) return it->second;
  }
  return undefined();
}

void State::set_attribute(const std::string& name, const std::string& attribute, Value value) {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    const auto it = scope->find(name);
    if (it == scope->end() || !it->second.is_object()) continue;
    it->second[attribute] = std::move(value);
    return;
  }
  fail(ErrorKind::usage, "[chat template] '{}.{}' is set, but '{}' is no namespace()", name,
       attribute, name);
}

void State::write(const std::string& text) {
  text_ += text;
  require(text_.size() <= kMostText, "[chat template] a text has more than {} bytes", kMostText);
}

Statement parse(const std::string& text) {
  // The last line break of a file is not part of it.
  const std::string without = text.ends_with('\n') ? text.substr(0, text.size() - 1) : text;
  return Parser(Cutter(without).cut()).parse();
}

}  // namespace tessera::jinja
