// Computes beside a collective what need not be done before it.
#pragma once

#include "lower/passes/step_prices.h"
#include "program/program.h"

namespace tessera {

/// A matmul, a convolution or another kernel that no pointwise step or reduction is.
bool is_kernel(const Step& step);

/// Moves compute steps, and buckets that are needed later, behind the starts of buckets that would
/// be awaited at once, outside of loops. Needs prices. The peak of live bytes stays. Returns
/// whether any step moved.
bool fill_waits(Program& program, const StepPrices& prices);

}  // namespace tessera
