// Tokens that are cut out of a text before anything else.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/pattern.h"

namespace tessera {

struct AddedToken {
  std::string text;
  int32_t id = -1;  ///< -1: not known yet
  bool special = false;
  bool strips_left = false, strips_right = false;  ///< white space beside it belongs to it
  bool normalized = false;                         ///< found behind the normalizers
  std::string where = {};                          ///< "'PATH': KEY" that it is from
};

class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);
  bool empty() const { return tokens_.empty(); }
  const std::vector<AddedToken>& tokens() const { return tokens_; }
  /// The first token in text[from, text.size()), the longest of those that begin there; nullptr:
  /// none. `range` is where it lies, at or after `from`. Without `specials` a special token is
  /// text.
  const AddedToken* find(std::string_view text, size_t from, bool specials, TextRange& range) const;
  /// Appends the ids of all that find() finds, and calls between(begin, end) for what lies between
  /// them.
  template <class Between>
  void cut(std::string_view text, bool specials, std::vector<int32_t>& ids, Between between) const {
    size_t done = 0;
    TextRange range;
    while (const AddedToken* token = find(text, done, specials, range)) {
      if (range.begin > done) between(done, range.begin);
      ids.push_back(token->id);
      done = range.end;
    }
    if (done < text.size()) between(done, text.size());
  }

 private:
  std::vector<AddedToken> tokens_;                 // the longest first
  std::array<std::vector<size_t>, 256> by_first_;  // indices into tokens_, in that order
};

}  // namespace tessera
