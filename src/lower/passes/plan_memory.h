// Static memory planning.
#pragma once

#include "program/program.h"

namespace tessera {

/// Sets the offset of every buffer in its arena. Persistent buffers lie side by side; transient
/// buffers share memory if their live ranges do not overlap, or as in_place_results().
void plan_memory(Program& program);

}  // namespace tessera
