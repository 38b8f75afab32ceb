// Buckets of collectives.
#pragma once

#include "lower/passes/step_prices.h"
#include "program/program.h"

namespace tessera {

/// Puts collectives of one kind over the same axes that do not depend on each other into buckets.
/// `prices` decide the bytes of a bucket; without prices it has at most `bucket_bytes`. Also lets
/// an all_reduce work in place if nothing reads its operand later.
void bucket_collectives(Program& program, int64_t bucket_bytes, const StepPrices& prices);

}  // namespace tessera
