// Regular expressions over Unicode text, by PCRE2.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

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

  /// The first match in text[from, text.size()); false if there is none. `text` is valid UTF-8. A
  /// match may be empty.
  bool find(std::string_view text, size_t from, MatchSpace& space, TextRange& match) const;

  /// The version of PCRE2; "" if this build has none.
  static std::string library();

 private:
  struct Code;
  std::string what_;
  std::unique_ptr<Code> code_;
};

}  // namespace tessera
