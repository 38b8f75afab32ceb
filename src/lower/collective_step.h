// The numbers of a collective step.
#pragma once

#include "lower/flow.h"
#include "lower/home.h"

namespace tessera {

/// Fills in the attributes and bytes of a collective step whose operands are set; see Collective in
/// collectives/communicator.h for their meaning. exchange: see describe_exchange; between two
/// shapes, describe_renumbering.
void describe_collective(const Flow& flow, const HomeLayouts& homes, const FlowNode& node,
                         Step& step);

}  // namespace tessera
