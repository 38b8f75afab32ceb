// Collective matmul: a matmul overlaps with its own collective.
#pragma once

#include <functional>

#include "lower/passes/step_prices.h"
#include "program/program.h"

namespace tessera {

/// Cuts a matmul whose result is reduced across ranks, or whose operand is gathered, into chunks
/// together with its collective. The collective of one chunk runs while the next chunk is computed.
/// Every element is computed as before. `chunks`: their number, where it divides the matmul; 0: the
/// fastest number by `prices`; 1: no cuts. A chunk keeps the matmul's epilogue; `takes` tells
/// whether the device can run it, as in fuse_epilogues().
void collective_matmul(Program& program, int chunks, const StepPrices& prices,
                       const std::function<bool(const Step&)>& takes = {});

}  // namespace tessera
