// Lets transfers of a pipeline be under way while stages compute.
#pragma once

#include "program/program.h"

namespace tessera {

/// A share of a turn that only sends (attribute "sends") awaits nothing any more: the share that
/// takes what was sent (attribute "takes"), some turns later, begins with the wait. Both run for
/// the same microbatches, so a wait is for the start of the iteration with the same number.
void await_late(Program& program);

}  // namespace tessera
