// UTF-8: validity, characters, white space.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

/// Bytes of the valid character that begins at `at`; 0 if there is none (overlong forms, surrogates
/// and code points above U+10FFFF are not valid).
inline size_t utf8_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
  };
  const auto follows = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const unsigned first = byte(0);
  if (first < 0x80) return at < text.size() ? 1 : 0;
  if (first >= 0xC2 && first < 0xE0) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first < 0xF0) {
    if ((first == 0xE0 && byte(1) < 0xA0) || (first == 0xED && byte(1) >= 0xA0)) return 0;
    return follows(1) && follows(2) ? 3 : 0;
  }
  if (first < 0xF0 || first > 0xF4) return 0;
  if ((first == 0xF0 && byte(1) < 0x90) || (first == 0xF4 && byte(1) >= 0x90)) return 0;
  return follows(1) && follows(2) && follows(3) ? 4 : 0;
}

/// The code point of the valid character of `length` bytes at `at`.
inline char32_t utf8_code_point(std::string_view text, size_t at, size_t length) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  if (length == 1) return byte(0);
  char32_t point = byte(0) & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) point = point << 6 | (byte(i) & 0x3F);
  return point;
}

/// Appends a code point that is no surrogate.
void append_utf8(char32_t point, std::string& text);

/// Unicode's property White_Space.
inline bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

/// The length of the longest prefix of `text` that is valid.
size_t valid_utf8(std::string_view text);
/// `text` with U+FFFD in place of each maximal part of it that is not valid, as Python's
/// errors="replace".
std::string replace_invalid_utf8(std::string_view text);

}  // namespace tessera
