// Interleaved 1F1B (Narayanan et al. 2021). With v chunks, M microbatches (a multiple of P) take
// 2Mv + 2(P - 1) ticks of a v-th of a stage's layers.
#include <algorithm>
#include <limits>

#include "program/schedules/alternating_order.h"
#include "program/schedules/schedules.h"

namespace tessera {

namespace {

PipelineTable interleaved_table(const PipelineShape& shape) {
  std::vector<std::vector<ScheduledWork>> lists;
  for (int64_t s = 0; s < shape.stages; ++s) lists.push_back(alternating_order(shape, s));
  return run_lists(shape, lists);
}

double interleaved_kept(double stages, double microbatches, double chunks) {
  return std::min(microbatches, stages + (stages - 1) / chunks);
}

}  // namespace

ScheduleRow interleaved() {
  return {.what = {.name = "interleaved",
                   .description = "1f1b that wants several chunks of layers a stage",
                   .least_chunks = 2,
                   .most_chunks = std::numeric_limits<int64_t>::max(),
                   .is_planned = false},
          .table = interleaved_table,
          .kept = interleaved_kept};
}

}  // namespace tessera
