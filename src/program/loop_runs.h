// How often the body of a loop runs.
#pragma once

#include <algorithm>

#include "program/program.h"

namespace tessera {

// A loop with exprs is a share of a pipeline. The exprs are the counter of the rank's first
// iteration and the counters [begin, end) of the iterations that run; the others are another
// stage's, or come in another turn. A window that moves with a scalar is inside a loop over turns,
// whose number is the attribute "turns". Where its exprs have a divisor d, an iteration runs in
// every d-th turn.

/// The most iterations that run each time a loop is run.
inline int64_t iterations_of(const Step& loop) {
  const int64_t all = loop.loop.iterations;
  if (loop.exprs.empty()) return all;
  const int64_t window = loop.exprs[2].constant - loop.exprs[1].constant;
  return std::min(all, loop.exprs[2].divisor > 1 ? 1 : window);
}

/// True if an iteration of a loop runs on any stage in this turn. Of a loop that runs every d-th
/// turn on a stage: in those of the first stage.
inline bool runs_in_turn(const Step& loop, int64_t turn) {
  if (!loop.attrs.has("turns")) return true;
  const IntExpr& end = loop.exprs[2];
  const int64_t all = loop.attrs.get<int64_t>("turns"), at = turn + end.constant;
  if (at % end.divisor != 0) return false;
  const bool has_all_stages = end.axis_terms.empty();  // together
  return has_all_stages ? at > 0 && at / end.divisor <= loop.loop.iterations
                        : turn / end.divisor < all / end.divisor;
}

/// How often the body runs if the loop is run `times` times.
inline int64_t body_runs(const Step& loop, int64_t times) {
  return times / loop.attrs.get<int64_t>("turns", 1) * loop.loop.iterations;
}

}  // namespace tessera
