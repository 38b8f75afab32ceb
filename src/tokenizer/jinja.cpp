// A template is cut into texts, expressions and statements; each becomes a function of the
// variables. Names that are not known fail when they are called, not when they are parsed.
#include "tokenizer/jinja.h"

#include <algorithm>
#include <utility>

#include "base/fail.h"
#include "tokenizer/jinja_expression.h"

namespace tessera::jinja {

namespace {

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
    if (mark == '%' && Words(inner, line_).is("raw")) return cut_raw(end + 2, after);
    if (mark != '#')
      pieces_.push_back(
          {mark == '{' ? Piece::Kind::expression : Piece::Kind::statement, inner, line_});
    line_ += lines;
    strip_ = after;
    drop_newline_ = !after && !keeps_after && mark != '{';
    return end + 2;
  }
  /// Text as it is, up to {% endraw %}.
  size_t cut_raw(size_t begin, bool strips) {
    for (size_t open = begin; (open = text_.find("{%", open)) != std::string::npos; ++open) {
      const size_t end = close_of(open + 2, "%}", true);
      if (end == std::string::npos) break;
      std::string inner = text_.substr(open + 2, end - open - 2);
      const bool before = inner.starts_with('-'), after = inner.ends_with('-');
      if (before) inner.erase(0, 1);
      if (after && !inner.empty()) inner.pop_back();
      if (!Words(inner, line_).is("endraw")) continue;
      strip_ = strips, drop_newline_ = !strips;
      add_text(text_.substr(begin, open - begin));
      if (before || begins_line(open)) strip_before(before);
      strip_ = after, drop_newline_ = !after;
      return end + 2;
    }
    fail(ErrorKind::io, "[chat template] line {}: 'endraw' is missing", line_);
  }
  size_t close_of(size_t from, const std::string& close, bool has_strings) const {
    char quote = 0;
    int open = 0;  // brackets
    for (size_t i = from; i < text_.size(); ++i) {
      const char c = text_[i];
      if (quote != 0) {
        if (c == '\\')
          ++i;
        else if (c == quote)
          quote = 0;
      } else if (has_strings && (c == '\'' || c == '"')) {
        quote = c;
      } else if (open <= 0 && text_.compare(i, 2, close) == 0) {
        return i;
      } else if (has_strings && (c == '(' || c == '[' || c == '{')) {
        ++open;
      } else if (has_strings && (c == ')' || c == ']' || c == '}')) {
        --open;
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
    Expression e = parse_expression(words);
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
      for (size_t i = 0; i < all.size() && s.flow == State::Flow::next; ++i) {
        s.count();
        all[i](s);
      }
    };
  }
  /// The statements up to `end`, which is taken.
  Statement body(const char* end) {
    Statement all = block({end});
    ++at_;
    return all;
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
    if (word == "macro") return parse_macro(words);
    if (word == "call") return parse_call_block(words);
    if (word == "filter") return parse_filter(words);
    if (word == "with") return parse_with(words);
    if (word == "generation") return body("endgeneration");  // SftData finds answers by itself
    if (word == "break" || word == "continue") {
      const State::Flow flow = word == "break" ? State::Flow::breaks : State::Flow::continues;
      if (loops_ == 0)
        fail(ErrorKind::io, "[chat template] line {}: '{}' outside of a loop", piece.line, word);
      return [flow](State& s) { s.flow = flow; };
    }
    refuse("the statement '" + word + "'");
  }

  static std::vector<std::string> names(Words& words) {
    const bool grouped = words.accept("(");
    std::vector<std::string> all = {words.name()};
    while (words.accept(",")) {
      if (words.is("in") || words.is("=") || words.is(")")) break;
      all.push_back(words.name());
    }
    if (grouped) words.expect(")");
    return all;
  }
  /// Sets one name, or each to an element.
  static void assign(State& s, const std::vector<std::string>& names, const Value& value) {
    if (names.size() == 1) return s.set(names[0], value);
    const std::vector<Value> parts = items_of(value, "several names for");
    TESSERA_REQUIRE(parts.size() == names.size(), "[chat template] {} names for {} values",
                    names.size(), parts.size());
    for (size_t i = 0; i < names.size(); ++i) s.set(names[i], parts[i]);
  }

  /// Filters behind "|", of a text.
  static Expression filters(Words& words, Expression text) {
    bool first = true;
    while (std::exchange(first, false) || words.accept("|")) {
      const std::string name = words.name();
      const CallArguments args = words.accept("(") ? parse_call(words) : CallArguments();
      text = [=](State& s) { return filtered(name, text(s), args.in(s)); };
    }
    if (!words.at_end()) words.wrong("the statement should end");
    return text;
  }
  static Expression text_of_block(const Statement& all) {
    return [all](State& s) { return Value(s.captured([&] { all(s); }, false)); };
  }

  Statement parse_set(Words& words) {
    const std::vector<std::string> to = names(words);
    if (to.size() == 1 && words.accept(".")) {
      const std::string attribute = words.name();
      words.expect("=");
      return [name = to[0], attribute, value = whole(words)](State& s) {
        s.set_attribute(name, attribute, value(s));
      };
    }
    if (words.at_end() || words.is("|")) {
      const Expression text = text_of_block(body("endset"));
      const Expression value = words.accept("|") ? filters(words, text) : text;
      return [to, value](State& s) { assign(s, to, value(s)); };
    }
    words.expect("=");
    return [to, value = whole(words)](State& s) { assign(s, to, value(s)); };
  }

  Statement parse_filter(Words& words) {
    const Expression value = filters(words, text_of_block(body("endfilter")));
    return [value](State& s) { s.write(text_of(value(s))); };
  }

  Statement parse_with(Words& words) {
    std::vector<std::pair<std::string, Expression>> values;
    while (!words.at_end()) {
      if (!values.empty()) words.expect(",");
      const std::string name = words.name();
      words.expect("=");
      values.emplace_back(name, parse_single_expression(words));
    }
    return [values, all = body("endwith")](State& s) {
      s.push();
      for (const auto& [name, value] : values) s.set(name, value(s));
      all(s);
      s.pop();
    };
  }

  struct Parameter {
    std::string name;
    Expression otherwise;  ///< empty: none
  };
  static std::vector<Parameter> parameters(Words& words) {
    std::vector<Parameter> all;
    while (!words.accept(")")) {
      if (!all.empty()) words.expect(",");
      all.push_back({words.name(), {}});
      if (words.accept("=")) all.back().otherwise = parse_single_expression(words);
    }
    return all;
  }
  static Macro macro_of(const std::string& name, const std::vector<Parameter>& parameters,
                        const Statement& all, bool apart) {
    return [=](State& s, const Arguments& args) {
      std::vector<const char*> names;
      for (const Parameter& p : parameters) names.push_back(p.name.c_str());
      const Bound bound(name + "()", args, names);
      return Value(s.captured(
          [&] {
            for (size_t i = 0; i < parameters.size(); ++i) {
              const Parameter& p = parameters[i];
              s.set(p.name, bound.has(i) || !p.otherwise ? bound[i] : p.otherwise(s));
            }
            all(s);
          },
          apart));
    };
  }
  Statement parse_macro(Words& words) {
    const std::string name = words.name();
    words.expect("(");
    const std::vector<Parameter> with = parameters(words);
    const int loops = std::exchange(loops_, 0);
    const Macro macro = macro_of(name, with, body("endmacro"), true);
    loops_ = loops;
    return [name, macro](State& s) { s.define(name, macro); };
  }
  /// {% call(x) f(y) %}: the block is the macro "caller" of f.
  Statement parse_call_block(Words& words) {
    const std::vector<Parameter> with =
        words.accept("(") ? parameters(words) : std::vector<Parameter>();
    const Expression call = whole(words);
    const Macro caller = macro_of("caller", with, body("endcall"), false);
    return [call, caller](State& s) {
      s.push();
      s.define("caller", caller);
      s.write(text_of(call(s)));
      s.pop();
    };
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
      otherwise = body("endif");
    }
    return [=](State& s) { (truth(condition(s)) ? then : otherwise)(s); };
  }

  Statement parse_for(Words& words) {
    const std::vector<std::string> each = names(words);
    words.expect("in");
    const Expression list = parse_plain_expression(words);
    const Expression condition = words.accept("if") ? parse_plain_expression(words) : Expression();
    if (words.is("recursive")) refuse("a recursive loop");
    if (!words.at_end()) words.wrong("the statement should end");
    ++loops_;
    Statement repeated = block({"else", "endfor"}), otherwise = [](State&) {};
    --loops_;
    if (first_word(pieces_[at_++]) == "else") otherwise = body("endfor");
    return [=](State& s) {
      std::vector<Value> all = items_of(list(s), "a loop over");
      s.push();
      if (condition)
        std::erase_if(all, [&](const Value& item) {
          assign(s, each, item);
          return !truth(condition(s));
        });
      const auto n = std::ssize(all);
      for (int64_t i = 0; i < n && s.flow != State::Flow::breaks; ++i) {
        s.pop();
        s.push();
        assign(s, each, all[static_cast<size_t>(i)]);
        Value loop = {{"first", i == 0},       {"last", i + 1 == n}, {"index", i + 1},
                      {"index0", i},           {"length", n},        {"revindex", n - i},
                      {"revindex0", n - i - 1}};
        if (i > 0) loop["previtem"] = all[static_cast<size_t>(i - 1)];
        if (i + 1 < n) loop["nextitem"] = all[static_cast<size_t>(i + 1)];
        s.set("loop", std::move(loop));
        repeated(s);
        if (s.flow == State::Flow::continues) s.flow = State::Flow::next;
      }
      s.flow = State::Flow::next;
      s.pop();
      if (n == 0) otherwise(s);
    };
  }

  std::vector<Piece> pieces_;
  size_t at_ = 0;
  int depth_ = 0, loops_ = 0;
};

}  // namespace

State::State(std::map<std::string, Value> globals) : scopes_(1) {
  scopes_[0].values = std::move(globals);
}

Value State::find(const std::string& name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto it = scope->values.find(name); it != scope->values.end()) return it->second;
  }
  return find_macro(name) || is_function(name) ? Value(true) : undefined();
}

const Macro* State::find_macro(const std::string& name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto it = scope->macros.find(name); it != scope->macros.end()) return &it->second;
  }
  return nullptr;
}

void State::define(const std::string& name, Macro macro) {
  scopes_.back().macros[name] = std::move(macro);
}

std::string State::captured(const std::function<void()>& body, bool apart) {
  if (++depth_ > kDeepest) refuse(fmt::format("nesting of more than {} levels", kDeepest));
  std::string before = std::exchange(text_, "");
  std::vector<Scope> around;
  if (apart) {
    const Macro* const caller = find_macro("caller");
    Scope inner;
    if (caller != nullptr) inner.macros["caller"] = *caller;
    around = std::exchange(scopes_, {});
    scopes_.push_back(std::move(around[0]));
    scopes_.push_back(std::move(inner));
  }
  push();
  body();
  pop();
  if (apart) {
    around[0] = std::move(scopes_[0]);
    scopes_ = std::move(around);
  }
  --depth_;
  return std::exchange(text_, std::move(before));
}

void State::count() {
  constexpr int64_t kMost = 10'000'000;
  TESSERA_REQUIRE(++statements_ <= kMost, "[chat template] it runs {} statements, and does not end",
                  kMost);
}

void State::set_attribute(const std::string& name, const std::string& attribute, Value value) {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    const auto it = scope->values.find(name);
    if (it == scope->values.end() || !it->second.is_object()) continue;
    it->second[attribute] = std::move(value);
    return;
  }
  fail(ErrorKind::usage, "[chat template] '{}.{}' is set, but '{}' is no namespace()", name,
       attribute, name);
}

void State::write(const std::string& text) {
  text_ += text;
  TESSERA_REQUIRE(text_.size() <= kMostText, "[chat template] a text has more than {} bytes",
                  kMostText);
}

Statement parse(const std::string& text) {
  // The last line break of a file is not part of it.
  const std::string without = text.ends_with('\n') ? text.substr(0, text.size() - 1) : text;
  return Parser(Cutter(without).cut()).parse();
}

}  // namespace tessera::jinja
