// Huang et al. 2019: all microbatches run through a pass before any begins the next one.
#include "program/schedules/distances.h"
#include "program/schedules/schedules.h"

namespace tessera {

namespace {

PipelineTable gpipe_table(const PipelineShape& shape) {
  PipelineTable table(shape);
  for (size_t p = 0; p < shape.passes.size(); ++p) set_at_distances(table, p, table.ticks(), 1);
  return table;
}

double keeps_all(double, double microbatches, double) { return microbatches; }

}  // namespace

ScheduleRow gpipe() {
  return {.what = {"gpipe", "all of them forward, then backward"},
          .table = gpipe_table,
          .kept = keeps_all,
          .in_turn = true};
}

}  // namespace tessera
