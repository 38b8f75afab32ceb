// The order of 1F1B, as far as schedules share it.
#pragma once

#include <vector>

#include "program/pipeline_table.h"

namespace tessera {

/// What a stage does forward and backward, in the order of Megatron-LM: some forwards ahead, then a
/// forward and a backward alternate. As many microbatches as there are stages pass through each
/// chunk in turn. Without the passes `weights`.
std::vector<ScheduledWork> alternating_order(const PipelineShape& shape, int64_t stage);

}  // namespace tessera
