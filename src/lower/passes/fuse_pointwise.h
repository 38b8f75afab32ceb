// Pointwise fusion.
#pragma once

#include "program/program.h"

namespace tessera {

/// Merges pointwise steps, and reductions along rows, over one iteration space into steps with
/// several outputs.
void fuse_pointwise(Program& program);

}  // namespace tessera
