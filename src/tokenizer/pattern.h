// Regular expressions over Unicode text, by PCRE2.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace tessera {

/// What a thread needs to match patterns; used by one thread at a time.
class MatchSpace {
 public:
  MatchSpace();
  ~MatchSpace();
  MatchSpace(const MatchSpace&) = delete;

 private:
  friend class Pattern;
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// A half-open range of bytes of a text.
struct TextRange {
  size_t begin = 0, end = 0;
};

/// The library that a pattern was written for. `\s` means Unicode's White_Space in both.
enum class Dialect {
  rust,       ///< tiktoken: ^ and $ are the ends of the text
  oniguruma,  ///< Hugging Face tokenizers: ^ and $ are the ends of lines
};

class Pattern {
 public:
  /// Throws an unsupported error without PCRE2, and a usage error that begins with "[tokenizer]
  /// WHAT" for a pattern that PCRE2 cannot compile.
  Pattern(const std::string& what, const std::string& expression,
          Dialect dialect = Dialect::oniguruma);
  ~Pattern();
  Pattern(const Pattern&) = delete;

  /// Calls visit(range) for each match in `text`, which is valid UTF-8, one after the other. A
  /// match may be empty. Characters have the categories of kUnicodeVersion.
  template <class Visit>
  void for_each(std::string_view text, MatchSpace& space, Visit visit) const {
    std::string room;
    const std::string_view seen = with_old_characters(text, room);
    size_t from = 0;
    for (TextRange match; from <= seen.size() && find(seen, from, space, match);) {
      visit(match);
      from = match.end > match.begin
                 ? match.end
                 : match.end + std::max<size_t>(1, utf8_length(seen, match.end));
    }
  }

  /// The version of PCRE2; "" if this build has none.
  static std::string library();

 private:
  /// The first match in text[from, text.size()); false if there is none.
  bool find(std::string_view text, size_t from, MatchSpace& space, TextRange& match) const;

  struct Code;
  std::string what_;
  std::unique_ptr<Code> code_;
};

}  // namespace tessera
