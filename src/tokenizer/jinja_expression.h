// Expressions of a template: their words, and what they compute.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tokenizer/jinja_values.h"

namespace tessera::jinja {

using Expression = std::function<Value(State&)>;

struct Word {
  enum class Kind { name, text, number, sign, end } kind = Kind::end;
  std::string value;
};

/// The words of a tag. Throws io errors with the line where it is none.
class Words {
 public:
  Words(const std::string& text, int line) : line_(line) { cut(text); }

  const Word& next() const { return words_[at_]; }
  bool at_end() const { return next().kind == Word::Kind::end; }
  Word take() { return words_[at_ + 1 < words_.size() ? at_++ : at_]; }
  /// Whether the next word, or the one behind it, is this name, number or sign.
  bool is(const std::string& value) const { return is_at(at_, value); }
  bool follows(const std::string& value) const { return is_at(at_ + 1, value); }
  bool accept(const std::string& value);
  void expect(const std::string& value);
  std::string name();
  [[noreturn]] void wrong(const std::string& what) const;

 private:
  void cut(const std::string& text);
  size_t cut_string(const std::string& text, size_t begin);
  bool is_at(size_t at, const std::string& value) const;

  int line_;
  std::vector<Word> words_;
  size_t at_ = 0;
};

/// The arguments of a call.
struct CallArguments {
  std::vector<Expression> values;
  std::vector<std::pair<std::string, Expression>> named;
  Arguments in(State& state) const;
};

/// Parses an expression; words may follow it. Throws io and unsupported errors.
Expression parse_expression(Words& words);
/// The same, without a comma; and without "A if B else C".
Expression parse_single_expression(Words& words);
Expression parse_plain_expression(Words& words);
/// Parses arguments behind "(".
CallArguments parse_call(Words& words);

}  // namespace tessera::jinja
