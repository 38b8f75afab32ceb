// The layout grammar. A string is cut into clauses at ';' and newlines; within a clause, words are
// read one by one: a word that ends at ':' or '=' closes the list of names gathered so far, and the
// next word is their axes.
#include <algorithm>

#include "base/fail.h"
#include "tessera/mesh.h"

namespace tessera {

const char* to_string(Purpose purpose) {
  switch (purpose) {
    case Purpose::none:
      return "none";
    case Purpose::params:
      return "params";
    case Purpose::grads:
      return "grads";
    case Purpose::state:
      return "state";
  }
  return "unknown";
}

bool glob_match(const std::string& glob, const std::string& text) {
  size_t g = 0, t = 0, star = std::string::npos, mark = 0;
  while (t < text.size()) {
    if (g < glob.size() && (glob[g] == '?' || glob[g] == text[t]) && glob[g] != '*') {
      ++g, ++t;
    } else if (g < glob.size() && glob[g] == '*') {
      star = g++;
      mark = t;
    } else if (star != std::string::npos) {
      g = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  while (g < glob.size() && glob[g] == '*') ++g;
  return g == glob.size();
}

namespace {

class ClauseParser {
 public:
  ClauseParser(const std::string& clause, std::vector<LayoutRule>& rules)
      : text_(clause), rules_(rules) {}

  void parse() {
    skip();
    if (pos_ < text_.size() && text_[pos_] == '@') parse_prefix();
    for (skip(); pos_ < text_.size(); skip()) {
      std::string name = word(":=?");
      TESSERA_REQUIRE(!name.empty(), "layout clause '{}': expected a dim name at '{}'", text_,
                      text_.substr(pos_));
      TESSERA_REQUIRE(
          name.find('@') == std::string::npos,
          "layout clause '{}': '@' begins a clause, but stands in '{}'; put ';' before it", text_,
          name);
      const bool optional = take('?');
      names_.push_back({name, optional});
      skip_blank();
      const bool replaces = pos_ < text_.size() && text_[pos_] == '=';
      if (take(':') || take('=')) parse_axes(replaces);
    }
    const bool is_bare =
        rules_.size() == rules_before_ && purpose_ == Purpose::none && scope_.empty();
    if (is_bare && names_.size() == 1 && names_[0] == std::pair{std::string("auto"), false}) {
      names_.clear();
      rules_.push_back({Purpose::none, "", "*", {}, false, true, false, 1, "*:auto"});
    }
    TESSERA_REQUIRE(
        names_.empty(),
        "layout clause '{}': dim '{}' has no axes; write '{}:axis', or '{}:-' to replicate", text_,
        names_.empty() ? "" : names_.back().first, names_.empty() ? "" : names_.back().first,
        names_.empty() ? "" : names_.back().first);
  }

 private:
  static bool is_separator(char c) {
    return c == ',' || c == '.' || c == ' ' || c == '\t' || c == '\r';
  }
  void skip() {
    while (pos_ < text_.size() && is_separator(text_[pos_])) ++pos_;
  }
  void skip_blank() {
    while (pos_ < text_.size() && (text_[pos_] == ' ' || text_[pos_] == '\t')) ++pos_;
  }
  bool take(char c) {
    if (pos_ >= text_.size() || text_[pos_] != c) return false;
    ++pos_;
    return true;
  }
  std::string word(const char* stops) {
    const size_t start = pos_;
    while (pos_ < text_.size() && !is_separator(text_[pos_]) &&
           std::string_view(stops).find(text_[pos_]) == std::string_view::npos)
      ++pos_;
    return text_.substr(start, pos_ - start);
  }

  void parse_prefix() {
    ++pos_;
    if (!take('/')) {
      parse_purpose();
      if (!take('/')) return;
    }
    const size_t end = text_.find('/', pos_);
    TESSERA_REQUIRE(end != std::string::npos && end > pos_,
                    "layout clause '{}': the scope glob has no closing '/'", text_);
    scope_ = text_.substr(pos_, end - pos_);
    pos_ = end + 1;
  }

  void parse_purpose() {
    const std::string name = word(":=/");
    if (name == "params") purpose_ = Purpose::params;
    if (name == "grads") purpose_ = Purpose::grads;
    if (name == "state") purpose_ = Purpose::state;
    TESSERA_REQUIRE(purpose_ != Purpose::none, "layout clause '{}': unknown purpose '@{}'{}", text_,
                    name, suggestion(name, {"params", "grads", "state"}));
  }

  void parse_axes(bool replaces) {
    skip_blank();
    std::string axes = word("");
    const std::string written = axes;
    TESSERA_REQUIRE(
        !axes.empty(),
        "layout clause '{}': dim '{}' has no axes; write '{}:axis', or '{}:-' to replicate", text_,
        names_.back().first, names_.back().first, names_.back().first);
    const int64_t intervals = take_factor(axes);
    for (const auto& [name, optional] : names_) {
      LayoutRule rule{purpose_,       scope_,   name,      {}, optional,
                      axes == "auto", replaces, intervals, ""};
      if (axes != "-" && axes != "auto") {
        for (size_t start = 0; start <= axes.size();) {
          const size_t plus = std::min(axes.find('+', start), axes.size());
          rule.axes.push_back(axes.substr(start, plus - start));
          TESSERA_REQUIRE(!rule.axes.back().empty(),
                          "layout clause '{}': '{}' is not a list of axes joined by '+'", text_,
                          axes);
          start = plus + 1;
        }
      }
      const bool prefixed = purpose_ != Purpose::none || !scope_.empty();
      if (prefixed) rule.text = "@";
      if (purpose_ != Purpose::none) rule.text += tessera::to_string(purpose_);
      if (!scope_.empty()) rule.text += fmt::format("/{}/", scope_);
      if (prefixed) rule.text += " ";
      rule.text +=
          fmt::format("{}{}{}{}", name, optional ? "?" : "", replaces ? "=" : ":", written);
      rules_.push_back(std::move(rule));
    }
    names_.clear();
  }

  /// Takes "*N" from the end of axes: N, or 1 without it.
  int64_t take_factor(std::string& axes) const {
    const size_t star = axes.find('*');
    if (star == std::string::npos) return 1;
    const std::string factor = axes.substr(star + 1);
    axes.resize(star);
    const bool is_number = !factor.empty() && factor.size() <= 4 &&
                           factor.find_first_not_of("0123456789") == std::string::npos;
    const int64_t intervals = is_number ? std::stoll(factor) : 0;
    TESSERA_REQUIRE(
        factor.find('+') == std::string::npos,
        "layout clause '{}': '*' stands behind the last axis and counts for all of them, and "
        "'{}*{}' has an axis behind it; write for example 'a+b*2'",
        text_, axes, factor);
    TESSERA_REQUIRE(
        intervals > 1 && axes != "-" && axes != "auto" && !axes.empty(),
        "layout clause '{}': '{}*{}' is not a split; behind axes, '*2' gives each rank two "
        "intervals with the same work, and each stage of layers two chunks (or '*3' three)",
        text_, axes, factor);
    TESSERA_REQUIRE(
        purpose_ == Purpose::none && scope_.empty(),
        "layout clause '{}': '{}*{}' deals the work of ops, not the storage of some tensors; "
        "write it in a clause without '@'",
        text_, axes, factor);
    return intervals;
  }

  const std::string& text_;
  std::vector<LayoutRule>& rules_;
  size_t rules_before_ = rules_.size(), pos_ = 0;
  Purpose purpose_ = Purpose::none;
  std::string scope_;
  std::vector<std::pair<std::string, bool>> names_;
};

}  // namespace

Layout Layout::parse(const std::string& text) {
  Layout layout;
  size_t start = 0;
  while (start <= text.size()) {
    const size_t end = std::min(text.find_first_of(";\n", start), text.size());
    std::string clause = text.substr(start, end - start);
    if (size_t comment = clause.find('#'); comment != std::string::npos) clause.resize(comment);
    ClauseParser(clause, layout.rules_).parse();
    start = end + 1;
  }
  return layout;
}

std::string Layout::to_string() const {
  std::string text;
  for (const LayoutRule& rule : rules_) text += (text.empty() ? "" : ";") + rule.text;
  return text;
}

}  // namespace tessera
