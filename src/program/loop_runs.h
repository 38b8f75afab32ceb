// How often the body of a loop runs.
#pragma once

#include <algorithm>

#include "program/program.h"

namespace tessera {

// A loop with exprs is a share of a pipeline. The exprs are the counter of the rank's first
// iteration and the counters [begin, end) of the iterations that run; the others are another
// stage's, or come in another turn. A window that moves with a scalar is inside a loop over turns,
// whose number is the attribute "turns". Where its exprs have a divisor d, an iteration runs in
// every d-th turn. Where they have tables [turn] or [turn, stage], an entry is the iteration that
// runs, or -1.

/// True if tables say when iterations run on a stage.
inline bool has_table_of_stages(const Step& loop) {
  return loop.exprs.size() == 3 && loop.exprs[1].table && !loop.exprs[1].axis_terms.empty();
}

/// The iteration in a turn on a stage of a loop with a table.
inline int64_t entry_of(const Step& loop, int64_t turn, int64_t stage) {
  const IntExpr& begin = loop.exprs[1];
  const int64_t at = turn * begin.scalar_factor + (begin.axis_terms.empty() ? 0 : stage);
  return begin.table->at(static_cast<size_t>(at));
}

/// The most iterations that run each time a loop is run.
inline int64_t iterations_of(const Step& loop) {
  const int64_t all = loop.loop.iterations;
  if (loop.exprs.empty()) return all;
  if (loop.exprs[1].table) return 1;
  const int64_t window = loop.exprs[2].constant - loop.exprs[1].constant;
  return std::min(all, loop.exprs[2].divisor > 1 ? 1 : window);
}

/// How often the body runs if the loop is run `times` times.
inline int64_t body_runs(const Step& loop, int64_t times) {
  return times / loop.attrs.get<int64_t>("turns", 1) * loop.loop.iterations;
}

}  // namespace tessera
