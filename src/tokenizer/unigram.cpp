// Viterbi's algorithm over the characters of a piece. Sums, ties and the penalty of an unknown
// character are those of Hugging Face tokenizers, so that ids agree: of equal sums the first that
// was found stays, and unknown characters in a row are one unknown token.
#include "tokenizer/unigram.h"

#include <algorithm>

#include "base/fail.h"
#include "tokenizer/utf8.h"

namespace tessera {

namespace {

constexpr double kUnknownPenalty = 10;

struct Best {
  double score = 0;
  size_t from = SIZE_MAX;  // none yet
  int32_t token = -1;
};

}  // namespace

Unigram::Unigram(const std::vector<std::pair<std::string, double>>& tokens, int32_t unknown,
                 bool byte_fallback)
    : unknown_(unknown), byte_fallback_(byte_fallback) {
  double least = tokens.empty() ? 0 : tokens[0].second;
  for (size_t i = 0; i < tokens.size(); ++i) {
    ids_[tokens[i].first] = static_cast<int32_t>(i);  // of equal tokens the last
    scores_.push_back(tokens[i].second);
    least = std::min(least, tokens[i].second);
  }
  unknown_score_ = least - kUnknownPenalty;
  for (size_t b = 0; b < 256; ++b) {
    const auto it = ids_.find(fmt::format("<0x{:02X}>", b));
    byte_ids_[b] = it == ids_.end() ? -1 : it->second;
  }
  std::vector<std::pair<std::string, int32_t>> sorted;
  for (const auto& [text, id] : ids_) {
    if (!text.empty()) sorted.emplace_back(text, id);
  }
  std::sort(sorted.begin(), sorted.end());
  nodes_.emplace_back();
  build(sorted, 0, sorted.size(), 0, 0);
}

void Unigram::build(const std::vector<std::pair<std::string, int32_t>>& sorted, size_t begin,
                    size_t end, size_t depth, int32_t node) {
  const auto byte_at = [&](size_t i) { return static_cast<unsigned char>(sorted[i].first[depth]); };
  if (begin < end && sorted[begin].first.size() == depth)
    nodes_[static_cast<size_t>(node)].token = sorted[begin++].second;
  const size_t first = edges_.size();
  std::vector<size_t> starts;
  for (size_t i = begin; i < end; ++i) {
    if (i > begin && byte_at(i) == byte_at(i - 1)) continue;
    starts.push_back(i);
    edges_.push_back({byte_at(i), static_cast<int32_t>(nodes_.size())});
    nodes_.emplace_back();
  }
  nodes_[static_cast<size_t>(node)].first = static_cast<int32_t>(first);
  nodes_[static_cast<size_t>(node)].count = static_cast<int32_t>(starts.size());
  starts.push_back(end);
  for (size_t c = 0; c + 1 < starts.size(); ++c)
    build(sorted, starts[c], starts[c + 1], depth + 1, edges_[first + c].node);
}

const Unigram::Node* Unigram::child(const Node& node, unsigned char byte) const {
  const Edge* begin = edges_.data() + node.first;
  const Edge* end = begin + node.count;
  const Edge* it =
      std::lower_bound(begin, end, byte, [](const Edge& e, unsigned char b) { return e.byte < b; });
  return it == end || it->byte != byte ? nullptr : &nodes_[static_cast<size_t>(it->node)];
}

void Unigram::add_unknown(std::string_view text, std::vector<int32_t>& ids) const {
  const auto byte_of = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
  if (byte_fallback_ &&
      std::all_of(text.begin(), text.end(), [&](char c) { return byte_of(c) >= 0; })) {
    for (const char c : text) ids.push_back(byte_of(c));
    return;
  }
  TESSERA_REQUIRE(
      unknown_ >= 0,
      "[tokenizer] the vocabulary has no token for '{}' and none for unknown text; use one with "
      "byte fallback or an unknown token",
      text);
  ids.push_back(unknown_);
}

void Unigram::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  static thread_local std::vector<Best> best;
  best.assign(piece.size() + 1, Best{});
  const auto offer = [&](size_t from, size_t to, double score, int32_t token) {
    Best& there = best[to];
    if (there.from == SIZE_MAX || score > there.score) there = {score, from, token};
  };
  for (size_t at = 0, length; at < piece.size(); at += length) {
    length = std::max<size_t>(1, utf8_length(piece, at));
    const double here = best[at].score;
    bool has_character = false;
    const Node* node = nodes_.data();
    for (size_t end = at; end < piece.size();) {
      node = child(*node, static_cast<unsigned char>(piece[end++]));
      if (!node) break;
      if (node->token < 0) continue;
      offer(at, end, scores_[static_cast<size_t>(node->token)] + here, node->token);
      has_character = has_character || end - at == length;
    }
    if (!has_character) offer(at, at + length, unknown_score_ + here, unknown_);
  }
  static thread_local std::vector<size_t> ends;  // of the tokens, from the last
  ends.clear();
  for (size_t end = piece.size(); end > 0; end = best[end].from) ends.push_back(end);
  for (size_t i = ends.size(); i-- > 0;) {
    const size_t begin = best[ends[i]].from;
    if (best[ends[i]].token != unknown_) {
      ids.push_back(best[ends[i]].token);
      continue;
    }
    while (i > 0 && best[ends[i - 1]].token == unknown_) --i;
    const std::string_view text = piece.substr(begin, ends[i] - begin);
    // A text of several unknown tokens may be a token.
    if (const auto it = ids_.find(text); it != ids_.end())
      ids.push_back(it->second);
    else
      add_unknown(text, ids);
  }
}

}  // namespace tessera
