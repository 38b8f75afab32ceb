// WordPiece: a word becomes the longest token that it begins with, then the longest one that goes
// on, and so to its end (Wu et al. 2016).
#pragma once

#include "tokenizer/bpe.h"

namespace tessera {

struct WordPieceRules {
  TokenIds ids;                 ///< of beginnings of words
  TokenIds inner;               ///< of what goes on within one, without the prefix "##"
  int32_t unknown = 0;          ///< for a word that tokens do not cover
  int64_t most_characters = 0;  ///< a longer word is unknown
};

class WordPiece : public TokenModel {
 public:
  explicit WordPiece(WordPieceRules rules);
  void encode(std::string_view piece, std::vector<int32_t>& ids) const override;

 private:
  WordPieceRules rules_;
  size_t longest_ = 0;  ///< bytes of a token
};

}  // namespace tessera
