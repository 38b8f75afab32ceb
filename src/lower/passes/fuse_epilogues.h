// Fuses pointwise steps into the matmuls before them.
#pragma once

#include <functional>

#include "program/program.h"

namespace tessera {

/// Moves pointwise instructions that follow a matmul into its epilogue: the pointwise program of
/// the "matmul" step (kernels/cuda/epilogue.h). `takes` tells whether the device can run such a
/// step; if it is empty nothing changes. 16-bit values are rounded less often than without fusion.
void fuse_epilogues(Program& program, const std::function<bool(const Step&)>& takes);

}  // namespace tessera
