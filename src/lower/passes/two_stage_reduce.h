// Reductions of whole tensors.
#pragma once

#include <cstdint>

#include "program/program.h"

namespace tessera {

/// A large reduction to one element becomes one of each row and one of the rows' results: the first
/// joins the pointwise steps that compute its operand, and several threads share it. Rows are as
/// long as the densest dim, at most `longest_row`.
void two_stage_reduce(Program& program, int64_t longest_row);

}  // namespace tessera
