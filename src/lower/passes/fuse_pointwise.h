// Pointwise fusion.
#pragma once

#include "lower/passes/fuse_merge.h"
#include "program/program.h"

namespace tessera {

/// Merges pointwise steps, and reductions along rows, over one iteration space into steps with
/// several outputs. `longest_row`: see FuseLimits.
void fuse_pointwise(Program& program, int64_t longest_row = FuseLimits().longest_row);

}  // namespace tessera
