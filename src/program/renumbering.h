// Exchanges between two shapes with the same elements in row-major order, for a reshape whose
// slices do not correspond. An element is identified by its logical row-major index. Padding has no
// index and is not moved.
#pragma once

#include <span>
#include <vector>

#include "program/slicing.h"

namespace tessera {

/// A tensor of logical sizes `extents` and its distribution over the ranks; without intervals.
struct Numbering {
  Slicing slicing;
  std::vector<int64_t> extents;
  /// A dim, behind another one, or -1. Where the index of the dim in front of it is odd, the ranks
  /// have the slices of this dim in reverse order.
  int turns = -1;
};

/// Elements with logical indices [index, index + length), at `offset` of the slice.
struct Row {
  int64_t index = 0, offset = 0, length = 0;
};

/// The elements of a rank's slice by ascending index. Rows are contiguous in index and memory.
std::vector<Row> rows_of(const Numbering& numbering, const std::vector<int>& axis_sizes,
                         std::span<const int> coordinates);
/// Calls visit(offset in a, offset in b, length) for all common elements, by ascending index.
template <class Visit>
void each_common(const std::vector<Row>& a, const std::vector<Row>& b, Visit visit) {
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const int64_t lo = std::max(a[i].index, b[j].index), end_a = a[i].index + a[i].length,
                  end_b = b[j].index + b[j].length, hi = std::min(end_a, end_b);
    if (lo < hi) visit(a[i].offset + lo - a[i].index, b[j].offset + lo - b[j].index, hi - lo);
    end_a < end_b ? ++i : ++j;
  }
}

/// Stores the exchange in a step: as describe_exchange, with both sides' extents and the target's
/// sizes. numberings_of() reads it back; is_renumbering() recognizes such steps.
void describe_renumbering(const Numbering& from, const Numbering& to, Step& step);
bool is_renumbering(const Step& step);
std::pair<Numbering, Numbering> numberings_of(const Step& step);

/// Bytes that a rank receives, the mean over ranks, rounded up. Exact up to 64 ranks. For more, the
/// first, middle and last rank of each axis represent the others.
int64_t mean_renumbered(const Numbering& from, const Numbering& to,
                        const std::vector<int>& axis_sizes, int64_t element_bytes);

}  // namespace tessera
