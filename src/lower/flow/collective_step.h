// The attributes of a collective step.
#pragma once

#include "lower/flow/flow.h"
#include "lower/layout/rule_layouts.h"

namespace tessera {

/// Fills in the attributes and bytes of a collective step whose operands are set. Their meaning:
/// for an exchange see describe_exchange(), between two shapes describe_renumbering(), else
/// Collective in collectives/communicator.h.
void describe_collective(const Flow& flow, const RuleLayouts& rule_layouts, const FlowNode& node,
                         Step& step);

}  // namespace tessera
