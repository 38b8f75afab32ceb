// The text of tokens while they are written: whole characters, up to a stop string.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cli/text_tokens.h"

namespace tessera::cli {

/// Decodes bytes as UTF-8. Incomplete characters are held back, invalid bytes become U+FFFD.
class Utf8 {
 public:
  std::string push(unsigned char byte) {
    if (wanted_ > 0 && (byte & 0xC0) == 0x80 && fits(byte)) {
      held_ += static_cast<char>(byte);
      return --wanted_ == 0 ? std::exchange(held_, "") : "";
    }
    std::string text = flush();
    wanted_ = byte < 0x80                   ? 0
              : byte >= 0xC2 && byte < 0xE0 ? 1
              : byte >= 0xE0 && byte < 0xF0 ? 2
              : byte >= 0xF0 && byte < 0xF5 ? 3
                                            : -1;
    if (wanted_ == 0) return text + static_cast<char>(byte);
    if (wanted_ < 0) {
      wanted_ = 0;
      return text + kReplacement;
    }
    held_ = static_cast<char>(byte);
    return text;
  }
  std::string flush() {
    wanted_ = 0;
    return held_.empty() ? "" : (held_.clear(), kReplacement);
  }

 private:
  static constexpr const char* kReplacement = "\xEF\xBF\xBD";
  /// The second byte excludes overlong forms, surrogates and code points above U+10FFFF.
  bool fits(unsigned char byte) const {
    if (held_.size() != 1) return true;
    const auto first = static_cast<unsigned char>(held_[0]);
    if (first == 0xE0) return byte >= 0xA0;
    if (first == 0xED) return byte < 0xA0;
    if (first == 0xF0) return byte >= 0x90;
    return first != 0xF4 || byte < 0x90;
  }
  std::string held_;
  int wanted_ = 0;
};

class TextStream {
 public:
  /// With the prompt at its front if `shows_prompt`. `vocabulary` must live as long as this.
  TextStream(const TextTokens& vocabulary, std::vector<int32_t> prompt, bool shows_prompt,
             std::vector<std::string> stops);
  /// Adds a token. False if the text ends with it: it is the token that ends texts, or completes
  /// one of `stops`, from which on nothing is shown.
  bool push(int32_t token);
  /// Nothing follows: shows what was held back because it could be the begin of a stop string or
  /// of a character.
  void finish();
  /// UTF-8. It only grows.
  const std::string& text() const { return text_; }
  /// Whether push() returned false.
  bool ended() const { return ended_; }

 private:
  void show(size_t end);
  const TextTokens& vocabulary_;
  std::vector<int32_t> tokens_;
  const std::vector<std::string> stops_;
  Utf8 utf8_;
  std::string bytes_, text_;
  size_t begin_ = 0, shown_ = 0;  ///< of the new bytes; those in text_
  bool ended_ = false;
};

}  // namespace tessera::cli
