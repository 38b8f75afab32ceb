// The pair of lowest rank, the leftmost of equal ones, is merged until none is left. Short pieces
// (words) look for it in a list of ranks; long ones keep the pairs in a heap over a linked list, so
// that a piece of n symbols takes n log n.
#include "tokenizer/bpe.h"

#include <algorithm>
#include <queue>

#include "base/fail.h"
#include "tokenizer/utf8.h"

namespace tessera {

namespace {

constexpr size_t kShort = 128;  // symbols

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

void MergeTable::reserve(size_t merges) {
  size_t size = 16;
  while (size < 2 * merges) size *= 2;
  std::vector<Merge> old(size);
  old.swap(slots_);
  used_ = 0;
  for (const Merge& merge : old) {
    if (merge.pair == kNone) continue;
    slots_[slot_of(merge.pair)] = merge;
    ++used_;
  }
}

size_t MergeTable::slot_of(uint64_t pair) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = (pair * 0x9e3779b97f4a7c15u) >> 32 & mask;
  while (slots_[slot].pair != kNone && slots_[slot].pair != pair) slot = (slot + 1) & mask;
  return slot;
}

void MergeTable::add(int32_t left, int32_t right, uint32_t rank, int32_t id) {
  if (2 * (used_ + 1) > slots_.size()) reserve(2 * used_ + 16);
  Merge& slot = slots_[slot_of(pair_of(left, right))];
  if (slot.pair != kNone) return;
  slot = {pair_of(left, right), rank, id};
  ++used_;
}

const MergeTable::Merge* MergeTable::find(int32_t left, int32_t right) const {
  if (slots_.empty()) return nullptr;
  const Merge& slot = slots_[slot_of(pair_of(left, right))];
  return slot.pair == kNone ? nullptr : &slot;
}

Bpe::Bpe(BpeRules rules) : rules_(std::move(rules)) {
  for (int b = 0; b < 256; ++b) {
    const auto it = rules_.ids.find(rules_.over_bytes ? std::string(1, static_cast<char>(b))
                                                      : fmt::format("<0x{:02X}>", b));
    byte_ids_[static_cast<size_t>(b)] = it == rules_.ids.end() ? -1 : it->second;
  }
}

void Bpe::add_symbols(std::string_view piece, std::vector<int32_t>& symbols) const {
  bool after_unknown = false;
  for (size_t at = 0, length; at < piece.size(); at += length) {
    length = rules_.over_bytes ? 1 : std::max<size_t>(1, utf8_length(piece, at));
    const std::string_view symbol = piece.substr(at, length);
    int32_t id = -1;
    if (rules_.over_bytes) {
      id = byte_ids_[static_cast<unsigned char>(symbol[0])];
    } else if (const auto it = rules_.ids.find(symbol); it != rules_.ids.end()) {
      id = it->second;
    }
    const auto has_byte = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)] >= 0; };
    if (id >= 0) {
      symbols.push_back(id);
    } else if (rules_.byte_fallback && std::all_of(symbol.begin(), symbol.end(), has_byte)) {
      for (const char c : symbol) symbols.push_back(byte_ids_[static_cast<unsigned char>(c)]);
    } else {
      if (rules_.unknown >= 0 && (!after_unknown || !rules_.fuse_unknown))
        symbols.push_back(rules_.unknown);
      after_unknown = true;
      continue;
    }
    after_unknown = false;
  }
}

void Bpe::merge_short(std::vector<int32_t>& symbols) const {
  std::array<const MergeTable::Merge*, kShort> merges;
  size_t count = symbols.size();
  const auto merge_at = [&](size_t i) {
    return i + 1 < count ? rules_.merges.find(symbols[i], symbols[i + 1]) : nullptr;
  };
  for (size_t i = 0; i < count; ++i) merges[i] = merge_at(i);
  for (;;) {
    size_t best = count;
    uint32_t rank = MergeTable::kNoRank;
    for (size_t i = 0; i + 1 < count; ++i) {
      if (merges[i] && merges[i]->rank < rank) rank = merges[i]->rank, best = i;
    }
    if (best == count) break;
    symbols[best] = merges[best]->id;
    std::copy(symbols.begin() + static_cast<long>(best) + 2,
              symbols.begin() + static_cast<long>(count),
              symbols.begin() + static_cast<long>(best) + 1);
    std::copy(merges.begin() + best + 2, merges.begin() + count, merges.begin() + best + 1);
    --count;
    merges[best] = merge_at(best);
    if (best > 0) merges[best - 1] = merge_at(best - 1);
  }
  symbols.resize(count);
}

void Bpe::merge_long(std::vector<int32_t>& symbols) const {
  struct Candidate {
    uint32_t rank;
    size_t at;
    int32_t left, right, id;
    bool operator<(const Candidate& other) const {  // the top of the queue is the largest
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  const size_t count = symbols.size();
  std::vector<size_t> next(count), before(count);
  std::priority_queue<Candidate> queue;
  const auto consider = [&](size_t at) {
    if (at >= count || next[at] >= count) return;
    const int32_t left = symbols[at], right = symbols[next[at]];
    if (const auto* merge = rules_.merges.find(left, right))
      queue.push({merge->rank, at, left, right, merge->id});
  };
  for (size_t i = 0; i < count; ++i) next[i] = i + 1, before[i] = i - 1;
  for (size_t i = 0; i < count; ++i) consider(i);
  constexpr int32_t kGone = -2;
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    if (symbols[top.at] != top.left || next[top.at] >= count || symbols[next[top.at]] != top.right)
      continue;
    const size_t gone = next[top.at];
    symbols[top.at] = top.id;
    symbols[gone] = kGone;
    next[top.at] = next[gone];
    if (next[gone] < count) before[next[gone]] = top.at;
    consider(top.at);
    consider(before[top.at]);
  }
  std::erase(symbols, kGone);
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  if (rules_.whole_first) {
    if (const auto it = rules_.ids.find(piece); it != rules_.ids.end())
      return ids.push_back(it->second);
  }
  static thread_local std::vector<int32_t> symbols;
  symbols.clear();
  add_symbols(piece, symbols);
  symbols.size() <= kShort ? merge_short(symbols) : merge_long(symbols);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

}  // namespace tessera
