#include "base/printable.h"

#include <fmt/format.h>

#include <cstdint>

namespace tessera {

namespace {

/// Bytes of the UTF-8 character that `text` begins with; 0 if it is none (RFC 3629).
size_t length_of(std::string_view text) {
  const auto at = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0; };
  const auto follows = [&](size_t i) { return (at(i) & 0xC0) == 0x80; };
  const int first = at(0), second = at(1);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool shortest = first != 0xE0 || second >= 0xA0;
    const bool surrogate = first == 0xED && second >= 0xA0;
    return shortest && !surrogate && follows(1) && follows(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool in_range = (first != 0xF0 || second >= 0x90) && (first != 0xF4 || second < 0x90);
    return in_range && follows(1) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

/// C0 controls but tab and line feed, DEL, and the C1 controls U+0080 to U+009F.
bool is_control(std::string_view character) {
  const auto first = static_cast<uint8_t>(character[0]);
  if (character.size() == 1)
    return (first < 0x20 && first != '\t' && first != '\n') || first == 0x7F;
  return character.size() == 2 && first == 0xC2 && static_cast<uint8_t>(character[1]) < 0xA0;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const size_t length = length_of(text.substr(i));
    const std::string_view character = text.substr(i, length == 0 ? 1 : length);
    if (length > 0 && !is_control(character)) {
      result += character;
    } else {
      for (const char byte : character)
        result += fmt::format("\\x{:02x}", static_cast<uint8_t>(byte));
    }
    i += character.size();
  }
  return result;
}

}  // namespace tessera
