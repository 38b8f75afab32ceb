// Experts that a program writes out: rows of tokens in the order of their experts, or matrices that
// each row looks up, and sums of what a token's choices give.
#pragma once

#include <set>
#include <string>

#include "pytorch/program.h"

namespace tessera::pytorch {

/// Replaces them by nodes "tessera.experts" (aten_products.cpp). What is not recognized stays,
/// and what has values of `changed`, which writes change.
void find_experts(ExportedProgram& program, const std::set<std::string>& changed);

}  // namespace tessera::pytorch
