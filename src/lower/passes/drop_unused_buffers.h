// Removes unused buffers.
#pragma once

#include "program/program.h"

namespace tessera {

/// Drops the buffers that no step and no port touches, and renumbers the others.
void drop_unused_buffers(Program& program);

}  // namespace tessera
