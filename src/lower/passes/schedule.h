// When collectives start and are awaited.
#pragma once

#include "program/program.h"

namespace tessera {

/// Starts collectives as early and awaits them as late as the order of steps allows without more
/// bytes alive at once than before.
void schedule(Program& program);

}  // namespace tessera
