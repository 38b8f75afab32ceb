// Pointwise fusion.
#pragma once

#include "program/program.h"

namespace tessera {

/// Merges neighbouring pointwise steps over one iteration space into one step with several outputs.
void fuse_pointwise(Program& program);

}  // namespace tessera
