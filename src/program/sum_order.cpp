#include "program/sum_order.h"

#include <algorithm>
#include <bit>

namespace tessera {

bool is_subtree(int64_t size, int64_t batch, int64_t chunks) {
  const int64_t chunk = chunk_size(batch, chunks);
  return size == batch ||
         (size % chunk == 0 && std::has_single_bit(static_cast<uint64_t>(size / chunk)));
}

namespace {

int64_t chunks_of(const SumOrder::Along& a) { return (a.size + a.chunk - 1) / a.chunk; }

/// Bits of a chunk's number.
int bits_of(const SumOrder::Along& a) {
  return static_cast<int>(std::bit_width(static_cast<uint64_t>(chunks_of(a) - 1)));
}

/// Walks the tree from its root. A node is a range of chunks of one dim, inside of single chunks of
/// the dims before it.
class Subtrees {
 public:
  Subtrees(const SumOrder& order, std::span<const int64_t> slices)
      : order_(order), range_{std::vector<std::pair<int64_t, int64_t>>(order.along.size())} {
    for (size_t d = 0; d < slices.size(); ++d) {
      const SumOrder::Along& a = order.along[d];
      const int64_t first = a.slices == 1 ? 0 : std::min(a.size, slices[d] * a.slice),
                    last = a.slices == 1 ? a.size : std::min(a.size, first + a.slice);
      here_.emplace_back((first + a.chunk - 1) / a.chunk, (last + a.chunk - 1) / a.chunk);
    }
    whole_ = order.along.size();
    while (whole_ > 0 && order.along[whole_ - 1].slices == 1) --whole_;
  }

  std::vector<SumRange> run() {
    if (std::all_of(order_.along.begin(), order_.along.end(),
                    [](const SumOrder::Along& a) { return a.size > 0; }))
      walk(0, 0, int64_t{1} << bits_of(order_.along[0]), 0);
    return std::move(found_);
  }

 private:
  void set(size_t d, int64_t first, int64_t last) {
    const SumOrder::Along& a = order_.along[d];
    range_.of[d] = {first * a.chunk, std::min(a.size, last * a.chunk)};
  }

  /// Chunks [first, last) of dim d. leaf: the bits of the dims before it.
  void walk(size_t d, int64_t first, int64_t last, uint64_t leaf) {
    const int64_t end = std::min(last, chunks_of(order_.along[d]));
    if (first >= std::min(end, here_[d].second) || end <= here_[d].first) return;
    const bool is_here = here_[d].first <= first && end <= here_[d].second;
    if (is_here && d + 1 >= whole_) return add(d, first, end, leaf);
    if (last - first > 1) {
      const int64_t middle = first + (last - first) / 2;
      walk(d, first, middle, leaf);
      walk(d, middle, last, leaf);
      return;
    }
    set(d, first, last);
    walk(d + 1, 0, int64_t{1} << bits_of(order_.along[d + 1]), number(d, first, leaf));
  }

  uint64_t number(size_t d, int64_t chunk, uint64_t leaf) const {
    return leaf << bits_of(order_.along[d]) | static_cast<uint64_t>(chunk);
  }

  void add(size_t d, int64_t first, int64_t end, uint64_t leaf) {
    set(d, first, end);
    leaf = number(d, first, leaf);
    for (size_t e = d + 1; e < order_.along.size(); ++e) {
      set(e, 0, chunks_of(order_.along[e]));
      leaf = number(e, 0, leaf);
    }
    range_.leaf = leaf;
    found_.push_back(range_);
  }

  const SumOrder& order_;
  SumRange range_;
  std::vector<std::pair<int64_t, int64_t>> here_;  ///< chunks of the rank
  size_t whole_;                                   ///< this dim and those behind it are not split
  std::vector<SumRange> found_ = {};
};

}  // namespace

std::vector<SumRange> subtrees_of(const SumOrder& order, std::span<const int64_t> slices) {
  return Subtrees(order, slices).run();
}

std::vector<SumRange> leaves_of(const SumOrder& order, const SumRange& subtree) {
  std::vector<SumRange> leaves{{{}, 0}};
  for (size_t d = 0; d < order.along.size(); ++d) {
    const SumOrder::Along& a = order.along[d];
    const auto [begin, end] = subtree.of[d];
    std::vector<SumRange> next;
    for (const SumRange& outer : leaves) {
      for (int64_t i = begin; i < end; i += a.chunk) {
        next.push_back(outer);
        next.back().of.emplace_back(i, std::min(end, i + a.chunk));
        next.back().leaf = outer.leaf << bits_of(a) | static_cast<uint64_t>(i / a.chunk);
      }
    }
    leaves = std::move(next);
  }
  return leaves;
}

int64_t OpenSubtrees::joins(uint64_t next, bool last) {
  const auto level = [](uint64_t a, uint64_t b) { return std::bit_width(a ^ b); };
  const int64_t before = size_;
  for (; size_ > 1; --size_) {  // they become a subtree, in which `next` must not lie
    const uint64_t a = leaves_[size_ - 2], b = leaves_[size_ - 1];
    if (!last && level(a, b) >= level(a, next)) break;
  }
  return before - size_;
}

std::vector<int64_t> joins_of(std::span<const uint64_t> leaves) {
  std::vector<int64_t> joins;
  OpenSubtrees open;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const bool last = i + 1 == leaves.size();
    open.push(leaves[i]);
    joins.push_back(open.joins(last ? 0 : leaves[i + 1], last));
  }
  return joins;
}

int64_t depth_of(std::span<const int64_t> joins) {
  int64_t depth = 0, most = 0;
  for (const int64_t count : joins) {
    most = std::max(most, ++depth);
    depth -= count;
  }
  return most;
}

}  // namespace tessera
