// Schedules in which each pass of a stage has ticks at fixed distances.
#pragma once

#include "program/pipeline_table.h"

namespace tessera {

/// Sets the ticks of a pass: `first` on its first stage for microbatch 0, one later on each stage
/// behind that, and `stride` later for each further microbatch.
void set_at_distances(PipelineTable& table, size_t pass, int64_t first, int64_t stride);

}  // namespace tessera
