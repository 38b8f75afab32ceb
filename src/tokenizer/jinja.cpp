// A template is cut into texts, expressions and statements; each becomes a function of the
// variables. Names that are not known fail when they are called, not when they are parsed.
#include "tokenizer/jinja.h"

#include <algorithm>

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
    if (word == "generation") {  // marks an answer, which SftData finds by itself
      Statement body = block({"endgeneration"});
      ++at_;
      return body;
    }
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
    Expression list = parse_plain_expression(words);
    if (!words.at_end()) refuse("a loop with a condition");
    Statement body = block({"endfor"});
    ++at_;
    return [=](State& s) {
      const Value all = list(s);
      TESSERA_REQUIRE(all.is_array(), "[chat template] a loop over {}", kind_of(all));
      const auto n = std::ssize(all);
      for (int64_t i = 0; i < n; ++i) {
        s.push();
        s.set(name, all[static_cast<size_t>(i)]);
        Value loop = {{"first", i == 0},       {"last", i + 1 == n}, {"index", i + 1},
                      {"index0", i},           {"length", n},        {"revindex", n - i},
                      {"revindex0", n - i - 1}};
        if (i > 0) loop["previtem"] = all[static_cast<size_t>(i - 1)];
        if (i + 1 < n) loop["nextitem"] = all[static_cast<size_t>(i + 1)];
        s.set("loop", std::move(loop));
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
  TESSERA_REQUIRE(text_.size() <= kMostText, "[chat template] a text has more than {} bytes",
                  kMostText);
}

Statement parse(const std::string& text) {
  // The last line break of a file is not part of it.
  const std::string without = text.ends_with('\n') ? text.substr(0, text.size() - 1) : text;
  return Parser(Cutter(without).cut()).parse();
}

}  // namespace tessera::jinja
