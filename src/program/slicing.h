// Where the elements of a tensor lie on the ranks: what exchanges are planned from when a step is
// bound, and priced from when it is chosen. A rank's slice is a product over the dims: of a dim
// that is cut over axes its part, of a dim with an interval that interval.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "program/program.h"

namespace tessera {

/// Elements [begin, begin + size) of a dim, by the rank's coordinates; intervals of different ranks
/// may overlap and reach beyond the dim's ends.
struct Interval {
  int dim = -1;
  IntExpr begin;
  int64_t size = 0;    ///< places in memory, the same on all ranks
  int64_t extent = 0;  ///< elements of the dim, without padding
  bool wraps = false;  ///< place p has element (begin + p) mod extent; else the places of what is
                       ///< outside [0, extent) hold anything
  bool operator==(const Interval&) const = default;
};

struct Slicing {
  std::vector<int64_t> sizes;          ///< of the dims, with padding
  std::vector<std::vector<int>> axes;  ///< per dim: mesh axes, major to minor
  std::vector<Interval> intervals;     ///< at most one a dim, whose axes are then empty
};

/// Elements [lo, hi) of each dim.
struct Box {
  std::vector<int64_t> lo, hi;
  bool empty() const;
  int64_t elements() const;
};
Box intersect(const Box& a, const Box& b);

/// A box of the tensor, and where its first element lies in the slice.
struct Piece {
  Box box;
  std::vector<int64_t> at;
};

/// The sizes of a slice in memory.
std::vector<int64_t> slice_sizes(const Slicing& slicing, const std::vector<int>& axis_sizes);
/// What the rank at `coordinates` holds. One piece, but where an interval wraps or is empty.
std::vector<Piece> pieces_of(const Slicing& slicing, const std::vector<int>& axis_sizes,
                             std::span<const int> coordinates);

/// Per dim the number of its axes and the axes, as one list; and back.
std::vector<int64_t> packed_axes(const std::vector<std::vector<int>>& axes);
std::vector<std::vector<int>> unpacked_axes(const std::vector<int64_t>& list);

/// The exchange from one slicing to another as a step carries it, and back. Attributes: the padded
/// sizes; both lists of axes as, per dim, their number and the axes; per interval of the target
/// dim, size, extent and whether it wraps. The beginnings are the step's expressions.
void describe_exchange(const Slicing& from, const Slicing& to, Step& step);
std::pair<Slicing, Slicing> slicings_of(const Step& step);

/// The mean over the ranks that differ in `axes` of what `count` finds for a rank's coordinates,
/// rounded up. Exact up to `most` ranks; beyond, the ranks at the ends and in the middle of each
/// axis stand for the rest.
int64_t mean_over_ranks(const std::vector<int>& axes, const std::vector<int>& axis_sizes,
                        int64_t most, const std::function<int64_t(std::span<const int>)>& count);
/// The axes that decide what a rank has of one and needs of the other.
std::vector<int> axes_of(const Slicing& from, const Slicing& to);

/// Bytes that a rank gets from others to go from one slicing, of which the intervals are empty, to
/// another: the mean over the ranks (exact up to 4,096 of them), rounded up.
int64_t mean_received(const Slicing& from, const Slicing& to, const std::vector<int>& axis_sizes,
                      int64_t element_bytes);

}  // namespace tessera
