// Layers that one product makes at once: linear(x, w) whose result is only read in parts, as
// queries, keys and values of one matrix are. The matrix becomes one parameter for each part, and
// the product one for each: what is a layer of its own elsewhere is one here, and no slice is
// copied.
#pragma once

#include "pytorch/program.h"

namespace tessera::pytorch {

/// Replaces nodes and parameters of `program`; `program.parts` then has the parameters' parts.
void find_parts(ExportedProgram& program);

}  // namespace tessera::pytorch
