// A sum of matmuls as one matmul.
#pragma once

#include <functional>

#include "lower/passes/step_prices.h"
#include "program/program.h"

namespace tessera {

/// y = a b, y = c d + y, ... becomes y = [a c ...] [b d ...] over the contracted dims of all, if y
/// is not read between (the gradient of what queries, keys and values are computed from). The
/// operands become columns of common buffers: whoever writes or reads one uses its part of each
/// row. Applies to operands in transient memory that are dense along the contracted dims; with
/// prices, where that is faster. Memory does not grow by more than a sixty-fourth. `takes` tells
/// whether the device can run an epilogue, as in fuse_epilogues(); `workspace`: the bytes that a
/// step needs. Empty: yes, and none. The sum is rounded once.
void concat_k_matmuls(Program& program, const StepPrices& prices,
                      const std::function<bool(const Step&)>& takes,
                      const std::function<int64_t(const Step&)>& workspace);

}  // namespace tessera
