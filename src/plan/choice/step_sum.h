// The time of a Program that hides nothing.
#pragma once

#include "cost/cost.h"

namespace tessera {

/// Seconds of all compute steps and collectives of a function without loops, one after the other.
/// Copies do not count: whether a slice must be made contiguous depends on more than layouts.
double step_sum(const Function& function, const Costs& costs);

/// Seconds of those compute steps that no fusion takes away: matmuls and other kernels, but not
/// pointwise steps and reductions. No schedule of the function takes less.
double kernel_sum(const Function& function, const Costs& costs);

}  // namespace tessera
