// Parts of a model that a rule of their own may cut otherwise than the rest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/space.h"
#include "tessera/graph.h"

namespace tessera {

/// A scoped rule, and how much of a rank's values it cuts further.
struct SegmentRule {
  std::string text;      ///< "@/*norm*/ length:model"
  std::string cut;       ///< of it "length:model"
  bool is_scope = true;  ///< the segment is a scope, not single nodes
  double bytes = 0;      ///< of values that an axis leaves whole without it
};

/// The rules that cut a free dim of a segment over one more axis: scopes before nodes, then those
/// that cut most. A segment is what shares a word of its names, a scope ("norm" of
/// gpt.block3.norm1.mul) or nodes ("loop_carry"). Rules that cut the same values are one; a rule is
/// left out if it cuts less than 1/64 of what any does, if its axes do not divide the dim, or if
/// more of the segment is already cut over the axis by other dims, which would be moved.
std::vector<SegmentRule> segment_rules(const Graph& graph, const Outline& outline,
                                       const Space& space, const Assignment& a);

}  // namespace tessera
