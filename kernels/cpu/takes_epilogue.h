// What a matmul on the CPU may end with.
#pragma once

#include "program/program.h"

namespace tessera::cpu {

/// For compiling: true if the kernel of "matmul" can run `step`, which has a pointwise program:
/// it adds to its result (adds_in_place), in float32 or float64, and is rounded as often as apart.
bool takes_epilogue(const Step& step);

}  // namespace tessera::cpu
