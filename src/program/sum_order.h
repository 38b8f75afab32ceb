// The canonical order of a sum under strict numerics: it depends on the sizes of the summed dims
// and on the number of chunks, and on no layout, mesh or thread.
//
// Example: a dim of 12 in chunks of 2 has 6 leaves, numbers 0 to 5. A leaf is one chain of
// additions in index order. Leaves are joined by a binary tree: ((0+1)+(2+3))+(4+5). A rank that
// holds elements 4 to 11 computes the subtrees (2+3) and (4+5), which are then joined with (0+1)
// of the other rank. Of several summed dims, the number of a leaf consists of the chunk numbers,
// the bits of the first dim in front: nested trees, the last dim's inside.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace tessera {

struct SumOrder {
  struct Along {
    int64_t dim = -1;    ///< of the step's views
    int64_t size = 0;    ///< logical size
    int64_t chunk = 1;   ///< elements of a chunk
    int64_t slices = 1;  ///< of the dim, over ranks
    int64_t slice = 0;   ///< elements of a slice: whole chunks
    bool operator==(const Along&) const = default;
  };
  std::vector<Along> along = {};  ///< the summed dims, the outermost first; empty: any order
  int64_t places = 1;             ///< for subtrees of a rank in the result
  int64_t stride = 0;             ///< elements from a place to the next
  int64_t expr = 0;  ///< the step's first expression of slice numbers, one for each summed dim

  bool is_strict() const { return !along.empty(); }
  /// True if a rank has subtrees, and not the whole sum.
  bool is_split() const {
    return std::any_of(along.begin(), along.end(), [](const Along& a) { return a.slices > 1; });
  }
  static void fields(auto& s, auto&& f) {
    f("sums_along", s.along, {});
    f("sums_expr", s.expr, 0);
    f("sums_places", s.places, 1);
    f("sums_stride", s.stride, 0);
  }
  bool operator==(const SumOrder&) const = default;
};

/// Elements of a chunk if a dim of `size` is divided into at most `chunks` of them.
constexpr int64_t chunk_size(int64_t size, int64_t chunks) {
  return size <= chunks ? 1 : (size + chunks - 1) / chunks;
}

/// True if the elements of a dim of `size`, which is the whole batch or a range of it that begins
/// at a multiple of `size`, are one subtree of a sum over the batch.
bool is_subtree(int64_t size, int64_t batch, int64_t chunks);

/// Elements [begin, end) of each summed dim, by global index. leaf: the number of the first leaf.
struct SumRange {
  std::vector<std::pair<int64_t, int64_t>> of;
  uint64_t leaf = 0;
};

/// The largest subtrees whose leaves all lie in a rank's slices, in the order of their leaves.
/// slices: the numbers of the slices, one for each summed dim.
std::vector<SumRange> subtrees_of(const SumOrder& order, std::span<const int64_t> slices);
/// The leaves of a subtree, in order.
std::vector<SumRange> leaves_of(const SumOrder& order, const SumRange& subtree);

/// The open subtrees of a sum whose leaves come in ascending order. A subtree is pushed; then the
/// two on top are joined as often as joins() says.
class OpenSubtrees {
 public:
  void push(uint64_t leaf) { leaves_[size_++] = leaf; }
  /// How often to join before the subtree whose first leaf is `next` is pushed; they count as
  /// joined. last: no subtree follows.
  int64_t joins(uint64_t next, bool last);
  int64_t size() const { return size_; }

 private:
  static constexpr int64_t kMost = 65;  ///< levels of the tree
  uint64_t leaves_[kMost] = {};
  int64_t size_ = 0;
};

/// OpenSubtrees::joins() after each of these subtrees. leaves: the numbers of their first leaves.
std::vector<int64_t> joins_of(std::span<const uint64_t> leaves);
/// The most subtrees that are open at a time.
int64_t depth_of(std::span<const int64_t> joins);

}  // namespace tessera
