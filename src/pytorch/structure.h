// Layers that a program writes out, found again: attention as products and a softmax, root mean
// square norms, halves that change places as rotary positions have them. One node stands where they
// stood, with a composite that has kernels.
#pragma once

#include "pytorch/program.h"

namespace tessera::pytorch {

/// Replaces nodes of `program`. What is not recognized stays.
void find_structure(ExportedProgram& program);

}  // namespace tessera::pytorch
