// Fuses pointwise steps into the reductions after them.
#pragma once

#include "program/program.h"

namespace tessera {

/// Moves the pointwise instructions that compute the operand of a "reduce" step into that step, as
/// its pointwise program, if nothing else reads the operand and fewer bytes move. Results are
/// bitwise equal.
void fuse_prologues(Program& program);

}  // namespace tessera
