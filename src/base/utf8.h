// Which bytes are UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera {

/// The length of the longest begin of `text` that consists of whole characters in UTF-8 (RFC 3629:
/// no overlong forms, surrogates or code points above U+10FFFF).
inline size_t valid_utf8(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  size_t i = 0;
  while (i < text.size()) {
    const unsigned char first = at(i);
    const size_t length = first < 0x80                    ? 1
                          : first >= 0xC2 && first < 0xE0 ? 2
                          : first >= 0xE0 && first < 0xF0 ? 3
                          : first >= 0xF0 && first < 0xF5 ? 4
                                                          : 0;
    if (length == 0 || i + length > text.size()) return i;
    for (size_t k = 1; k < length; ++k) {
      if ((at(i + k) & 0xC0) != 0x80) return i;
    }
    const unsigned char second = length > 1 ? at(i + 1) : 0;
    if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second >= 0xA0) ||
        (first == 0xF0 && second < 0x90) || (first == 0xF4 && second >= 0x90))
      return i;
    i += length;
  }
  return i;
}

/// What to say of a line that is not UTF-8: "has the byte 0xe9 at 4, so the file is not UTF-8;
/// convert it: ...". "" for one that is.
std::string utf8_fault(std::string_view line);

}  // namespace tessera
