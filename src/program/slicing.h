// The distribution of a tensor's elements over ranks. Exchanges are planned with it when a step is
// bound, and priced with it when a layout is chosen. A rank's slice is a product over dims: of a
// split dim its part, of a dim with an interval that interval.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "program/program.h"

namespace tessera {

/// Elements [begin, begin + size) of a dim, where begin depends on the rank's coordinates.
/// Intervals of different ranks may overlap and may extend beyond the dim's ends.
struct Interval {
  int dim = -1;
  AffineExpr begin;
  int64_t size = 0;    ///< elements in memory, the same on all ranks
  int64_t extent = 0;  ///< size of the dim, without padding
  bool wraps = false;  ///< element p in memory is (begin + p) mod extent; false: elements outside
                       ///< [0, extent) are undefined
  bool operator==(const Interval&) const = default;
};

struct Slicing {
  std::vector<int64_t> sizes;          ///< padded sizes of the dims
  std::vector<std::vector<int>> axes;  ///< per dim: mesh axes, major to minor
  std::vector<Interval> intervals;     ///< at most one per dim; such a dim has no axes
};

/// The elements [lo, hi) of each dim.
struct Box {
  std::vector<int64_t> lo, hi;
  bool empty() const;
  int64_t elements() const;
};
Box intersect(const Box& a, const Box& b);

/// A box of the tensor, and the position of its first element in the slice.
struct Piece {
  Box box;
  std::vector<int64_t> at;
};

/// Sizes of a slice in memory.
std::vector<int64_t> slice_sizes(const Slicing& slicing, const std::vector<int>& axis_sizes);
/// The elements of the rank at `coordinates`: one piece, unless an interval wraps or is empty.
/// `scalars`: if an interval depends on them.
std::vector<Piece> pieces_of(const Slicing& slicing, const std::vector<int>& axis_sizes,
                             std::span<const int> coordinates, const int64_t* scalars = nullptr);

/// Stores an exchange from one slicing to another in a step; slicings_of reads it back.
void describe_exchange(const Slicing& from, const Slicing& to, Step& step);
std::pair<Slicing, Slicing> slicings_of(const Step& step);

/// The mean of count(coordinates) over the ranks that differ in `axes`, rounded up. Exact up to
/// `most` ranks. For more, the first, middle and last rank of each axis represent the others.
int64_t mean_over_ranks(const std::vector<int>& axes, const std::vector<int>& axis_sizes,
                        int64_t most, const std::function<int64_t(std::span<const int>)>& count);
/// The axes that determine which elements a rank has in `from` and needs in `to`.
std::vector<int> axes_of(const Slicing& from, const Slicing& to);

/// Bytes that a rank receives to change from one slicing (without intervals) to another: the mean
/// over ranks (exact up to 4,096), rounded up.
int64_t mean_received(const Slicing& from, const Slicing& to, const std::vector<int>& axis_sizes,
                      int64_t element_bytes);

}  // namespace tessera
