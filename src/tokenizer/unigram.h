// The unigram model: the segmentation of a piece with the largest sum of scores.
#pragma once

#include <utility>

#include "tokenizer/bpe.h"

namespace tessera {

class Unigram : public TokenModel {
 public:
  /// The tokens with their scores, in the order of ids. `unknown`: id of the unknown token, -1 for
  /// none.
  Unigram(const std::vector<std::pair<std::string, double>>& tokens, int32_t unknown,
          bool byte_fallback);
  void encode(std::string_view piece, std::vector<int32_t>& ids) const override;

 private:
  struct Node {  ///< of a trie; children are a sorted range of edges_
    int32_t first = 0, count = 0, token = -1;
  };
  struct Edge {
    unsigned char byte;
    int32_t node;
  };
  const Node* child(const Node& node, unsigned char byte) const;
  void build(const std::vector<std::pair<std::string, int32_t>>& sorted, size_t begin, size_t end,
             size_t depth, int32_t node);
  void add_unknown(std::string_view text, std::vector<int32_t>& ids) const;

  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::vector<double> scores_;
  TokenIds ids_;
  std::array<int32_t, 256> byte_ids_;
  int32_t unknown_;
  bool byte_fallback_;
  double unknown_score_;
};

}  // namespace tessera
