// Segments of a model: groups of nodes that a scoped rule may split differently from the rest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/space.h"
#include "tessera/graph.h"

namespace tessera {

/// A scoped rule and the bytes that it can save.
struct SegmentRule {
  std::string text;      ///< "@/*norm*/ length:model"
  std::string cut;       ///< what it adds: "length:model"
  bool is_scope = true;  ///< the segment is a scope, not single nodes
  double bytes = 0;      ///< on a rank, of values that are whole along the axis without the rule
};

/// The rules that split a free dim of a segment over one more axis: first those of scopes, then
/// those of nodes, each ordered by bytes. A segment is all nodes with a common word in their names:
/// in a scope ("norm" of gpt.block3.norm1.mul) or in the node's own name ("loop_carry"). Of rules
/// that split the same values one is kept. Left out are rules that split less than 1/64 of the
/// bytes of another, whose axes do not divide the dim, or in whose segment other dims already split
/// more over that axis (those values would be resharded).
std::vector<SegmentRule> segment_rules(const Graph& graph, const StepSummary& summary,
                                       const Space& space, const Assignment& a);

}  // namespace tessera
