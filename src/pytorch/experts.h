// Experts that a program writes out: rows of tokens in the order of their experts, or matrices that
// each row looks up, and sums of what a token's choices give.
#pragma once

#include "pytorch/program.h"

namespace tessera::pytorch {

/// Replaces them by nodes "tessera.experts" (aten_products.cpp). What is not recognized stays.
void find_experts(ExportedProgram& program);

}  // namespace tessera::pytorch
