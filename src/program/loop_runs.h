// How often the body of a loop runs.
#pragma once

#include <algorithm>

#include "program/program.h"

namespace tessera {

// A loop with exprs is a share of a pipeline. The exprs are the counter of the rank's first
// iteration and the counters [begin, end) of the iterations that run; the others are another
// stage's, or come in another turn. A window that moves with a scalar is inside a loop over turns,
// whose number is the attribute "turns"; with the attribute "stages" so many take turns. Where its
// exprs have a divisor d, an iteration runs in every d-th turn. Where they have tables [turn] or
// [turn, stage], an entry is the iteration that runs, or -1.

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

/// True if an iteration of a loop runs on a stage in this turn. Without a table it is any stage; of
/// a loop that runs every d-th turn on a stage, in those of the first stage, and in as many turns
/// as stages need for all microbatches: the attribute "stages".
inline bool runs_in_turn(const Step& loop, int64_t turn, int64_t stage) {
  if (!loop.attrs.has("turns")) return true;
  if (loop.exprs[1].table) return entry_of(loop, turn, stage) >= 0;
  const IntExpr& end = loop.exprs[2];
  const bool has_all_stages = end.axis_terms.empty();  // together
  if (!has_all_stages && !loop.attrs.has("stages")) return true;
  const int64_t at = turn + end.constant;
  if (at % end.divisor != 0) return false;
  const int64_t nth = at / end.divisor;
  const int64_t across = has_all_stages ? 0 : loop.attrs.get<int64_t>("stages") - 1;
  const bool goes_back = !has_all_stages && end.axis_terms[0].second > 0;
  return nth > (goes_back ? -across : 0) && nth <= loop.loop.iterations + (goes_back ? 0 : across);
}

/// In a turn, the last stage that has work by the tables of the loops in `body`; 0 without tables.
/// The last stage is idle at the start, when others run forward, and at the end, when they run
/// backward: so all turns of a step are counted as they are.
inline int64_t working_stage(const Function& body, int64_t turn) {
  int64_t last = 0;
  for (const Step& loop : body.steps) {
    if (!has_table_of_stages(loop)) continue;
    for (int64_t stage = loop.exprs[1].scalar_factor - 1; stage > last; --stage) {
      if (entry_of(loop, turn, stage) >= 0) last = stage;
    }
  }
  return last;
}

/// How often the body runs if the loop is run `times` times.
inline int64_t body_runs(const Step& loop, int64_t times) {
  return times / loop.attrs.get<int64_t>("turns", 1) * loop.loop.iterations;
}

}  // namespace tessera
