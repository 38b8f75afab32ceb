#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "tokenizer/utf8.h"

namespace tessera {

namespace {

/// The end of the white space that begins at `at`.
size_t after_space(std::string_view text, size_t at) {
  for (size_t length; (length = utf8_length(text, at)) > 0; at += length) {
    if (!is_white_space(utf8_code_point(text, at, length))) break;
  }
  return at;
}

/// The begin of the white space that ends at `end`, not before `from`.
size_t before_space(std::string_view text, size_t from, size_t end) {
  while (end > from) {
    size_t at = end - 1;
    while (at > from && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    if (!is_white_space(utf8_code_point(text, at, end - at))) break;
    end = at;
  }
  return end;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& t) { return t.text.empty(); });
  std::stable_sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) {
    return a.text.size() > b.text.size();
  });
  for (size_t i = 0; i < tokens_.size(); ++i)
    by_first_[static_cast<unsigned char>(tokens_[i].text[0])].push_back(i);
}

const AddedToken* AddedTokens::find(std::string_view text, size_t from, bool specials,
                                    TextRange& range) const {
  if (tokens_.empty()) return nullptr;
  for (size_t at = from; at < text.size(); ++at) {
    for (const size_t i : by_first_[static_cast<unsigned char>(text[at])]) {
      const AddedToken& token = tokens_[i];
      if (text.compare(at, token.text.size(), token.text) != 0) continue;
      if (token.special && !specials) {
        at += token.text.size() - 1;
        break;
      }
      range = {at, at + token.text.size()};
      if (token.strips_left) range.begin = before_space(text, from, at);
      if (token.strips_right) range.end = after_space(text, range.end);
      return &token;
    }
  }
  return nullptr;
}

}  // namespace tessera
