// How often the body of a loop runs.
#pragma once

#include <algorithm>

#include "program/program.h"

namespace tessera {

/// The most iterations that run each time a loop is run.
inline int64_t iterations_of(const LoopStep& loop) {
  if (loop.end >= 0) return std::min(loop.iterations, loop.end);
  return loop.share ? 1 : loop.iterations;
}

/// How often the body runs if the loop is run `times` times.
inline int64_t body_runs(const LoopStep& loop, int64_t times) {
  return times / (loop.share ? loop.share->ticks : 1) * loop.iterations;
}

}  // namespace tessera
