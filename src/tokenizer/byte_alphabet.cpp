// Printable bytes of Latin-1 stand for themselves; the others, in order, are U+0100 and following.
#include "tokenizer/byte_alphabet.h"

#include <array>

#include "tokenizer/utf8.h"

namespace tessera {

std::optional<std::string> bytes_of_visible(std::string_view token) {
  constexpr int kPoints = 256 + 68;
  static const std::array<int, kPoints> bytes = [] {
    std::array<int, kPoints> table;
    table.fill(-1);
    int other = 256;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      table[static_cast<size_t>(printable ? b : other++)] = b;
    }
    return table;
  }();
  std::string result;
  for (size_t at = 0, length; at < token.size(); at += length) {
    length = utf8_length(token, at);
    const char32_t point = length == 0 ? kPoints : utf8_code_point(token, at, length);
    if (point >= kPoints || bytes[point] < 0) return std::nullopt;
    result += static_cast<char>(bytes[point]);
  }
  return result;
}

}  // namespace tessera
