// Epilogues of matmuls.
#pragma once

#include <functional>

#include "program/program.h"

namespace tessera {

/// Makes pointwise instructions behind a matmul its epilogue: the pointwise program of the
/// "contract" step (kernels/cuda/epilogue.h). `takes` tells whether the device can do such a step;
/// without `takes` nothing changes. Sums in 16 bits are rounded less often than before.
void fuse_epilogues(Program& program, const std::function<bool(const Step&)>& takes);

}  // namespace tessera
