// Lets transfers of a pipeline be under way while stages compute.
#pragma once

#include "program/program.h"

namespace tessera {

/// A share of a turn that only sends (attribute "sends") awaits nothing any more: the share that
/// takes what was sent (attribute "takes", the same number), later in the turn or some turns later,
/// begins with the wait. Both have the same iterations, so a wait is for the start of the iteration
/// with the same number.
void await_late(Program& program);

}  // namespace tessera
