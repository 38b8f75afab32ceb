// Reductions that read the same operand.
#pragma once

#include "program/program.h"

namespace tessera {

/// Two reductions over the same dims that read a common operand (the gradients of a norm's scale
/// and shift) become one step with two results, one for each output of its pointwise program.
void merge_reductions(Program& program);

}  // namespace tessera
