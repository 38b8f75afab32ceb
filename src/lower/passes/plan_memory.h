// Offsets of buffers in their arenas.
#pragma once

#include "program/program.h"

namespace tessera {

/// Gives every buffer its offset: persistent buffers side by side; transient ones may share memory
/// if their live ranges do not overlap.
void plan_memory(Program& program);

}  // namespace tessera
