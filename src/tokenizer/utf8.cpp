#include "tokenizer/utf8.h"

#include <cstring>

namespace tessera {

void append_utf8(char32_t point, std::string& text) {
  const auto add = [&](unsigned bits) { text += static_cast<char>(bits); };
  if (point < 0x80) return add(point);
  if (point < 0x800) {
    add(0xC0 | point >> 6);
  } else {
    if (point < 0x10000) {
      add(0xE0 | point >> 12);
    } else {
      add(0xF0 | point >> 18);
      add(0x80 | (point >> 12 & 0x3F));
    }
    add(0x80 | (point >> 6 & 0x3F));
  }
  add(0x80 | (point & 0x3F));
}

size_t valid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight;
    while (at + sizeof(eight) <= text.size()) {  // ASCII
      std::memcpy(&eight, text.data() + at, sizeof(eight));
      if (eight & 0x8080808080808080u) break;
      at += sizeof(eight);
    }
    if (at == text.size()) break;
    const size_t length = utf8_length(text, at);
    if (length == 0) break;
    at += length;
  }
  return at;
}

namespace {

/// Bytes of the maximal part of an ill-formed sequence at `at`: what could have begun a character.
size_t ill_formed_length(std::string_view text, size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  const size_t wanted = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4) return 1;
  size_t length = 1;
  for (; length < wanted && at + length < text.size(); ++length) {
    // It is a prefix of a character if some last bytes complete it.
    std::string trial(text.substr(at, length + 1));
    trial.resize(wanted, '\x80');
    if (utf8_length(trial, 0) == 0) break;
  }
  return length;
}

}  // namespace

std::string replace_invalid_utf8(std::string_view text) {
  std::string result;
  for (;;) {
    const size_t valid = valid_utf8(text);
    result += text.substr(0, valid);
    text.remove_prefix(valid);
    if (text.empty()) return result;
    result += "\xEF\xBF\xBD";
    text.remove_prefix(ill_formed_length(text, 0));
  }
}

}  // namespace tessera
