// Overlap of communication with computing: decides at which step each collective starts and is
// awaited.
#pragma once

#include "lower/passes/step_prices.h"
#include "program/program.h"

namespace tessera {

/// Moves the starts of collectives up and their waits down; compute steps keep their order. Within
/// an iteration no move raises the peak of live bytes. A collective that is prefetched in the
/// iteration before, or awaited in the next one, double-buffers its operands. With a machine's
/// prices a collective starts as early as it must to be hidden, with a margin; without, as early as
/// slow links would need.
void schedule(Program& program, const StepPrices& prices = {});

}  // namespace tessera
