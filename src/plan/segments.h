// Segments of a model: groups of nodes that a scoped rule may split otherwise than the rest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/space.h"
#include "tessera/graph.h"

namespace tessera {

/// A scoped rule, and the bytes of a rank's values that it splits further.
struct SegmentRule {
  std::string text;      ///< "@/*norm*/ length:model"
  std::string cut;       ///< what it adds: "length:model"
  bool is_scope = true;  ///< the segment is a scope, not single nodes
  double bytes = 0;      ///< of values that the axis leaves whole without it
};

/// The rules that split a free dim of a segment over one more axis: scopes before nodes, then those
/// that split most bytes. A segment is all nodes with a common word in their names: of a scope
/// ("norm" of gpt.block3.norm1.mul), or of the nodes themselves ("loop_carry"). Of several rules
/// that split the same values one is kept. A rule is left out if it splits less than 1/64 of what
/// another does, if its axes do not divide the dim, or if other dims already split more of the
/// segment over that axis, because those values would be resharded.
std::vector<SegmentRule> segment_rules(const Graph& graph, const StepSummary& summary,
                                       const Space& space, const Assignment& a);

}  // namespace tessera
