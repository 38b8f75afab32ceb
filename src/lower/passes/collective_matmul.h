// Matmuls that overlap their own collective.
#pragma once

#include <functional>

#include "lower/passes/step_prices.h"
#include "program/program.h"

namespace tessera {

/// Cuts matmuls whose result is reduced across ranks, or whose operand is gathered, into chunks,
/// together with their collective: `chunks` of them where that divides, or for 0 as many as pay by
/// `prices`. The collective of one chunk runs while the next chunk is computed. No element is
/// computed in another way. Each chunk keeps the matmul's epilogue, where `takes` says that the
/// device can do it, as in fuse_epilogues().
void collective_matmul(Program& program, int chunks, const StepPrices& prices,
                       const std::function<bool(const Step&)>& takes = {});

}  // namespace tessera
