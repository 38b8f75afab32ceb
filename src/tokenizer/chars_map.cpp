// A double-array trie as Darts-clone writes it: a unit holds the byte that leads to it, the offset
// of its children (bits 10 to 30; bit 9: times 256), and in bit 8 whether a key ends here; the
// value is then in the first child. As in Hugging Face tokenizers, a grapheme of fewer than 6 bytes
// is looked up as a whole, then its characters one by one, and the shortest key that is a prefix
// decides.
#include <cstring>

#include "base/fail.h"
#include "tokenizer/normalizers.h"
#include "tokenizer/utf8.h"

namespace tessera {

namespace {

bool has_leaf(uint32_t unit) { return (unit >> 8) & 1; }
uint32_t label_of(uint32_t unit) { return unit & ((1u << 31) | 0xFF); }
uint32_t offset_of(uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }

[[noreturn]] void fail_damaged(size_t bytes, const char* why) {
  fail(ErrorKind::io,
       "[tokenizer] the normalizer's precompiled_charsmap of {} bytes is damaged: {}; get the file "
       "again",
       bytes, why);
}

}  // namespace

CharsMap::CharsMap(const std::string& map) : graphemes_("normalizer Precompiled", "\\X") {
  uint32_t bytes = 0;
  if (map.size() < sizeof(bytes)) fail_damaged(map.size(), "it has no size");
  std::memcpy(&bytes, map.data(), sizeof(bytes));
  if (bytes % sizeof(uint32_t) != 0 || bytes == 0 || bytes > map.size() - sizeof(bytes))
    fail_damaged(map.size(), "its trie does not fit");
  trie_.resize(bytes / sizeof(uint32_t));
  std::memcpy(trie_.data(), map.data() + sizeof(bytes), bytes);
  texts_ = map.substr(sizeof(bytes) + bytes);
  texts_ += '\0';
}

const char* CharsMap::find(std::string_view text) const {
  size_t at = offset_of(trie_[0]);
  for (const char c : text) {
    if (c == 0) return nullptr;
    at ^= static_cast<unsigned char>(c);
    if (at >= trie_.size() || label_of(trie_[at]) != static_cast<unsigned char>(c)) return nullptr;
    const uint32_t unit = trie_[at];
    at ^= offset_of(unit);
    if (!has_leaf(unit)) continue;
    if (at >= trie_.size()) return nullptr;
    const uint32_t value = trie_[at] & 0x7FFFFFFFu;
    return value < texts_.size() ? texts_.c_str() + value : nullptr;
  }
  return nullptr;
}

std::string CharsMap::normalize(std::string_view text, MatchSpace& space) const {
  std::string result;
  graphemes_.for_each(text, space, [&](const TextRange& grapheme) {
    const std::string_view whole = text.substr(grapheme.begin, grapheme.end - grapheme.begin);
    if (whole.size() < 6) {
      if (const char* found = find(whole)) {
        result += found;
        return;
      }
    }
    for (size_t i = 0, length; i < whole.size(); i += length) {
      length = std::max<size_t>(1, utf8_length(whole, i));
      const char* found = find(whole.substr(i, length));
      found ? result += found : result += whole.substr(i, length);
    }
  });
  return result;
}

}  // namespace tessera
