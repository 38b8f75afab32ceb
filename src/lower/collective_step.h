// The numbers of a collective step.
#pragma once

#include "lower/flow.h"
#include "lower/home.h"

namespace tessera {

/// Fills in the attributes and bytes of a collective step whose operands are set; see Collective in
/// collectives/communicator.h for their meaning. exchange: the padded sizes, and both layouts as,
/// per dim, the number of axes and the axes.
void describe_collective(const Flow& flow, const HomeLayouts& homes, const FlowNode& node,
                         Step& step);

}  // namespace tessera
