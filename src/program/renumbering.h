// Exchanges between tensors of different dims that have the same elements in row-major order: what
// reshape needs where its slices do not correspond. An element is known by its logical index in
// that order; padding has none and is left alone.
#pragma once

#include <span>
#include <vector>

#include "program/slicing.h"

namespace tessera {

/// A tensor of logical sizes `extents` as it lies on the ranks; no intervals.
struct Numbering {
  Slicing slicing;
  std::vector<int64_t> extents;
};

/// Elements with the logical indices [index, index + length), from `offset` on in the slice.
struct Row {
  int64_t index = 0, offset = 0, length = 0;
};

/// The elements of a rank's slice, by ascending index; neighbours in both are one row.
std::vector<Row> rows_of(const Numbering& numbering, const std::vector<int>& axis_sizes,
                         std::span<const int> coordinates);
/// Calls visit(offset in a, offset in b, length) for all elements in both, by ascending index.
template <class Visit>
void each_common(const std::vector<Row>& a, const std::vector<Row>& b, Visit visit) {
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const int64_t lo = std::max(a[i].index, b[j].index), end_a = a[i].index + a[i].length,
                  end_b = b[j].index + b[j].length, hi = std::min(end_a, end_b);
    if (lo < hi) visit(a[i].offset + lo - a[i].index, b[j].offset + lo - b[j].index, hi - lo);
    end_a < end_b ? ++i : ++j;
  }
}

/// The exchange as a step carries it: as describe_exchange, and both sides' extents and the
/// target's sizes. Back: is_renumbering() tells such steps.
void describe_renumbering(const Numbering& from, const Numbering& to, Step& step);
bool is_renumbering(const Step& step);
std::pair<Numbering, Numbering> numberings_of(const Step& step);

/// Bytes that a rank gets from others, the mean over the ranks, rounded up. Exact up to 64
/// ranks; beyond, the ranks at the ends and in the middle of each axis stand for the rest.
int64_t mean_renumbered(const Numbering& from, const Numbering& to,
                        const std::vector<int>& axis_sizes, int64_t element_bytes);

}  // namespace tessera
