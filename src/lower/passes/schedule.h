// Overlap of communication with computing: decides at which step each collective starts and is
// awaited.
#pragma once

#include "program/program.h"

namespace tessera {

/// Moves the starts of collectives up and their waits down; compute steps keep their order. Within
/// an iteration no move raises the peak of live bytes. A collective that is prefetched in the
/// iteration before, or awaited in the next one, double-buffers its operands.
void schedule(Program& program);

}  // namespace tessera
