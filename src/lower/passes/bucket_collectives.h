// Gradient and parameter buckets: small collectives that are combined.
#pragma once

#include "lower/passes/step_prices.h"
#include "program/program.h"

namespace tessera {

/// Combines independent collectives of one kind over the same axes into buckets of bounded size: at
/// most `bucket_bytes`, or whatever is fastest by `prices` if those are given. Also lets an
/// all_reduce work in place if nothing reads its operand later. `awaited_apart`: what a step needs
/// at once is not combined with what none does.
void bucket_collectives(Program& program, int64_t bucket_bytes, const StepPrices& prices,
                        bool awaited_apart = false);

}  // namespace tessera
