// Computes beside a collective what need not be done before it.
#pragma once

#include "lower/passes/step_prices.h"
#include "program/program.h"

namespace tessera {

/// Moves compute steps behind the starts of buckets that would be awaited at once, outside of
/// loops. Needs prices. The peak of live bytes stays. Returns whether any step moved.
bool fill_waits(Program& program, const StepPrices& prices);

}  // namespace tessera
