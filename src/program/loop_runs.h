// How often the body of a loop runs.
#pragma once

#include <algorithm>

#include "program/program.h"

namespace tessera {

// A loop with exprs is a share of a pipeline. The exprs are the counter of the rank's first
// iteration and the counters [begin, end) of the iterations that run; the others are another
// stage's, or come in another turn. A window that moves with a scalar is inside a loop over turns,
// whose number is the attribute "turns".

/// The most iterations that run each time a loop is run.
inline int64_t iterations_of(const Step& loop) {
  const int64_t all = loop.loop.iterations;
  return loop.exprs.empty() ? all : std::min(all, loop.exprs[2].constant - loop.exprs[1].constant);
}

/// How often the body runs if the loop is run `times` times.
inline int64_t body_runs(const Step& loop, int64_t times) {
  return times / loop.attrs.get<int64_t>("turns", 1) * loop.loop.iterations;
}

}  // namespace tessera
