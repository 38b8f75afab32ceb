// Chunks of layers in stages.
#pragma once

#include "lower/flow/flow.h"
#include "lower/layout/rule_layouts.h"

namespace tessera {

/// In loops over microbatches, cuts each loop over layers in stages into FlowLoop::chunks loops of
/// one chunk a stage, in the order in which a microbatch passes through them. The schedule says
/// which stage has which chunks. What layers stack for other layers is stacked chunk by chunk. What
/// else is stacked or sliced by layers lies as without chunks, each stage its consecutive layers:
/// one exchange deals it to chunks or puts it together, outside of the loop over microbatches where
/// that is possible (parameters and their gradients). Throws a usage error for an unknown schedule.
void assign_virtual_stages(const RuleLayouts& rule_layouts, const std::string& schedule,
                           Flow& flow);

}  // namespace tessera
