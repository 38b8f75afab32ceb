// From an executor to a Trace.
#pragma once

#include <functional>

#include "runtime/executor.h"

namespace tessera {

class Trace;

/// What an executor of world rank `rank` calls for each step; empty without a trace.
std::function<void(const StepSpan&)> recorder_of(Trace* trace, int rank);

}  // namespace tessera
