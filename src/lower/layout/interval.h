// Dims with an index relation (Relation in tessera/op.h): which interval of the dim a rank needs,
// and how to get it there. Example: a convolution over a split 'height' needs its slice and a halo.
#pragma once

#include <vector>

#include "lower/layout/reshard.h"
#include "lower/layout/rule_layouts.h"
#include "program/renumbering.h"
#include "tessera/op.h"

namespace tessera {

/// Where an op needs an operand, and the cost of getting it there.
struct OperandPlacement {
  TensorLayout layout;  ///< dims with an interval have no axes
  std::vector<Interval> intervals;
  int64_t bytes = 0;    ///< sent by each rank, latency included (reshard.h)
  int64_t latency = 0;  ///< the part of `bytes` that stands for latency
  bool operator==(const OperandPlacement&) const = default;
};

/// Returns the cheapest placement of operand `operand`, which now has layout `now`, for an op that
/// is split as `splits`. `target`: the layout that the splits give the operand, with its related
/// dims whole. A related dim stays as it is if every rank already has its interval; otherwise it is
/// exchanged as an interval or gathered, whichever sends fewer bytes.
OperandPlacement place_operand(const OpCall& call, const IndexSpace& space, int operand,
                               const TensorLayout& now, const TensorLayout& target,
                               const std::vector<std::vector<int>>& splits,
                               const RuleLayouts& rule_layouts, Resharder& resharder);

/// The global offset of a rank's slice: local * (the rank's index over the axes, major to minor).
AffineExpr slice_begin(const Mesh& mesh, const std::vector<int>& axes, int64_t local);

/// The slices, with padded sizes, that a layout gives a shape; `intervals` as in OperandPlacement.
Slicing slicing_of(const RuleLayouts& rule_layouts, const Shape& shape, const TensorLayout& layout,
                   const std::vector<Interval>& intervals = {});

/// slicing_of() with the logical sizes. The shape has no bounded dims. `turns`: Numbering::turns.
Numbering numbering_of(const RuleLayouts& rule_layouts, const Shape& shape,
                       const TensorLayout& layout, int turns = -1);
std::vector<int> sizes_of_axes(const Mesh& mesh);

/// For reports: "elements [2*rows-1, +4) of 'height'".
std::string describe(const std::vector<Interval>& intervals, const Shape& shape, const Mesh& mesh);

}  // namespace tessera
