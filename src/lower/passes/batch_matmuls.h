// One batched matmul for many matmuls, one reduction for many.
#pragma once

#include <functional>

#include "lower/passes/step_prices.h"
#include "program/program.h"

namespace tessera {

/// Replaces matmuls of one shape that do not depend on each other (the gradients of the layers'
/// weights) by one with a batch dim. What they read and write then lies in common buffers, one
/// after the other; an operand that all read stays where it is. Applies to matmuls without batch
/// dims whose results alone keep few units of a device busy; with prices, where the batch is
/// faster. The peak of live memory does not grow. `takes` tells whether the device can
/// run an epilogue, as in fuse_epilogues(); `workspace`: the bytes that a step needs. Empty: yes,
/// and none. Every element is computed from the same numbers. Reductions of tensors of one shape to
/// a number each (the norm of the gradients) become batches alike.
void batch_matmuls(Program& program, const StepPrices& prices,
                   const std::function<bool(const Step&)>& takes,
                   const std::function<int64_t(const Step&)>& workspace);

}  // namespace tessera
