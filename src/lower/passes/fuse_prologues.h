// Prologues of reductions.
#pragma once

#include "program/program.h"

namespace tessera {

/// Makes the pointwise instructions that compute the operand of a "reduce" step its pointwise
/// program, if nothing else reads that operand and fewer bytes move. The bits are the same.
void fuse_prologues(Program& program);

}  // namespace tessera
