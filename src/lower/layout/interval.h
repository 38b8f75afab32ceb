// Dims with an index relation (Relation in tessera/op.h): which interval a rank needs of them, and
// how it gets that.
#pragma once

#include <vector>

#include "lower/layout/reshard.h"
#include "lower/layout/rule_layouts.h"
#include "program/renumbering.h"
#include "tessera/op.h"

namespace tessera {

/// How an operand lies when its op is computed, and the bytes that each rank sends to get there.
struct Placement {
  TensorLayout layout;  ///< along a dim with an interval: no axes
  std::vector<Interval> intervals;
  int64_t bytes = 0;    ///< latency counts as bytes (reshard.h)
  int64_t latency = 0;  ///< the bytes that stand for latency
  bool operator==(const Placement&) const = default;
};

/// The cheapest placement of operand `operand`, which now has layout `now`, for an op that is
/// computed with `splits`. `target`: the layout that the splits give it, its related dims whole.
/// Related dims stay as they are if every rank has what it needs, or are moved as intervals, or
/// become whole.
Placement place_operand(const OpCall& call, const IndexSpace& space, int operand,
                        const TensorLayout& now, const TensorLayout& target,
                        const std::vector<std::vector<int>>& splits,
                        const RuleLayouts& rule_layouts, Resharder& resharder);

/// Where a slice begins: local * (the rank's index over the axes, major to minor).
IntExpr slice_begin(const Mesh& mesh, const std::vector<int>& axes, int64_t local);

/// The slicing that a layout means for a shape; `intervals` as in Placement.
Slicing slicing_of(const RuleLayouts& rule_layouts, const Shape& shape, const TensorLayout& layout,
                   const std::vector<Interval>& intervals = {});

/// The same with logical sizes, of a tensor without bounded dims.
Numbering numbering_of(const RuleLayouts& rule_layouts, const Shape& shape,
                       const TensorLayout& layout);
std::vector<int> sizes_of_axes(const Mesh& mesh);

/// "elements [2*rows-1, +4) of 'height'": for reports.
std::string describe(const std::vector<Interval>& intervals, const Shape& shape, const Mesh& mesh);

}  // namespace tessera
