// The dot products that the gradient of attention begins with.
#pragma once

#include <functional>

#include "program/program.h"

namespace tessera {

/// The gradient of attention reads, for each query, the sum of its result times the result's
/// gradient. Libraries compute that themselves. Where a step of its own stores it for nobody else,
/// that step goes, and attribute "own_dot" tells the device to compute what it needs; operand 6
/// then shows log_sum. `may_own`: whether the device can do that for a step. Values are the same.
void fuse_attention_delta(Program& program, const std::function<bool(const Step&)>& may_own);

}  // namespace tessera
