// How a line of a Program's text is read.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

#include "base/fail.h"

namespace tessera {

/// One line, or a part of it. Every function that reads fails with the line's number.
class TextLine {
 public:
  TextLine(std::string_view text, int number) : text_(text), number_(number) {}

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> what, Args&&... args) const {
    fail(ErrorKind::io, "line {} of a Program: {}; write it again with this version of tessera",
         number_, fmt::format(what, std::forward<Args>(args)...));
  }
  bool at_end() const { return at_ == text_.size(); }
  bool accept(std::string_view token) {
    if (!is_at(token)) return false;
    at_ += token.size();
    return true;
  }
  bool is_at(std::string_view token) const { return text_.substr(at_, token.size()) == token; }
  void expect(std::string_view token) {
    if (!accept(token)) refuse("'{}' is expected at '{}'", token, rest());
  }
  std::string_view rest() const { return text_.substr(at_, 40); }
  int number() const { return number_; }

  template <class T>
  T value() {
    T result{};
    const char* const begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), result);
    if (error != std::errc{}) refuse("a number is expected at '{}'", rest());
    at_ += static_cast<size_t>(end - begin);
    return result;
  }
  int64_t integer() { return value<int64_t>(); }
  /// An index below `end`.
  int index(size_t end, const char* what) {
    const auto i = value<int64_t>();
    if (i < 0 || i >= static_cast<int64_t>(end)) refuse("{} {} of {}", what, i, end);
    return static_cast<int>(i);
  }
  /// Up to one of the characters, or to the end.
  std::string word(std::string_view ends) {
    const size_t begin = at_;
    at_ = std::min(text_.find_first_of(ends, at_), text_.size());
    return std::string(text_.substr(begin, at_ - begin));
  }
  /// A quoted text, or a word.
  std::string name(std::string_view ends) {
    if (!accept("\"")) {
      std::string plain = word(ends);
      if (plain.empty()) refuse("a name is expected at '{}'", rest());
      return plain;
    }
    std::string result;
    while (!accept("\"")) {
      if (at_end()) refuse("a quoted name does not end");
      const bool escaped = accept("\\");
      if (at_end()) refuse("a quoted name does not end");
      result += escaped && text_[at_] == 'n' ? '\n' : text_[at_];
      ++at_;
    }
    return result;
  }
  /// "[a,b]"
  template <class Read>
  void list(const Read& read) {
    expect("[");
    if (accept("]")) return;
    do read();
    while (accept(","));
    expect("]");
  }

 private:
  std::string_view text_;
  int number_;
  size_t at_ = 0;
};

}  // namespace tessera
