// Dims that an op relates by an index (Relation in tessera/op.h): what a rank needs of them, and
// how it comes by it.
#pragma once

#include <vector>

#include "lower/home.h"
#include "lower/reshard.h"
#include "runtime/program_rows.h"
#include "tessera/op.h"

namespace tessera {

/// How an operand lies when its op is computed, and the bytes that each rank sends to get there.
struct Placement {
  TensorLayout layout;  ///< along a dim with an interval: no axes
  std::vector<Interval> intervals;
  int64_t bytes = 0;    ///< with what stands for latency (reshard.h)
  int64_t latency = 0;  ///< that part of them
  bool operator==(const Placement&) const = default;
};

/// The cheapest way to give an op, computed with `splits`, what it needs of operand `operand`,
/// which now has layout `now`. `wanted` is the layout that the splits give it, its related dims
/// whole. The related dims are left as they are if every rank has what it needs, are brought as
/// intervals, or become whole.
Placement place_operand(const OpCall& call, const IndexSpace& space, int operand,
                        const TensorLayout& now, const TensorLayout& wanted,
                        const std::vector<std::vector<int>>& splits, const HomeLayouts& homes,
                        Resharder& resharder);

/// local * (index over the axes, major to minor): where a slice begins.
IntExpr slice_begin(const Mesh& mesh, const std::vector<int>& axes, int64_t local);

/// A layout as slicing. Dims of `shape`; `intervals` as in Placement.
Slicing slicing_of(const HomeLayouts& homes, const Shape& shape, const TensorLayout& layout,
                   const std::vector<Interval>& intervals = {});

/// The same with logical sizes, of a tensor without bounded dims.
Numbering numbering_of(const HomeLayouts& homes, const Shape& shape, const TensorLayout& layout);
std::vector<int> sizes_of_axes(const Mesh& mesh);

/// "elements [2*rows-1, +4) of 'height'": for reports.
std::string describe(const std::vector<Interval>& intervals, const Shape& shape, const Mesh& mesh);

}  // namespace tessera
