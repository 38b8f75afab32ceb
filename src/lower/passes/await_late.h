// Lets transfers of a pipeline be under way while stages compute.
#pragma once

#include "program/program.h"

namespace tessera {

/// A share of a tick that only sends (PipelineShare::send_id) awaits nothing any more: the share
/// with the same recv_id, later in the tick or some ticks later, begins with the wait. Both have
/// the same iterations, so a wait is for the start of the iteration with the same number.
void await_late(Program& program);

}  // namespace tessera
