// Recomputes what a fused step along rows would store for later steps.
#pragma once

#include "program/program.h"

namespace tessera {

/// Where a pointwise step stores a tensor that only later pointwise steps and prologues read, and
/// a few cheap instructions compute it from the step's operands and one number per row, the step
/// stores those numbers instead and each reader repeats the instructions. Applies if fewer bytes
/// move, and no operand is larger than the tensor. Results are bitwise equal.
void recompute_rows(Program& program);

}  // namespace tessera
