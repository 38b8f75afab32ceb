// With P stages, stage s has microbatch m forward in tick 2m + s and backward in tick
// 2m + 2P - 1 - s, so no more than P - s microbatches are under way. Neighbours swap: where one
// goes on with forward, the other one goes on with backward.
#include <algorithm>
#include <limits>

#include "program/schedules/distances.h"
#include "program/schedules/schedules.h"

namespace tessera {

void set_at_distances(PipelineTable& table, size_t pass, int64_t first, int64_t stride) {
  for (int64_t s = 0; s < table.stages(); ++s) {
    const int64_t behind = table.passes()[pass].ascends ? s : table.stages() - 1 - s;
    for (int64_t m = 0; m < table.microbatches(); ++m)
      table.set_tick({pass, m}, s, stride * m + first + behind);
  }
}

namespace {

bool is_forward(const PipelinePass& pass) { return pass.work == StageWork::forward; }

PipelineTable at_distances(const PipelineShape& shape) {
  PipelineTable table(shape);
  const auto& passes = shape.passes;
  const int64_t stride = std::all_of(passes.begin(), passes.end(), is_forward) ? 1 : 2;
  int64_t now = 0;
  for (size_t p = 0; p < passes.size(); ++p, now += shape.stages) {
    // The first stage is forward in even ticks, backward in odd ones.
    const int64_t on_first = passes[p].ascends ? now : now + shape.stages - 1;
    if (stride == 2 && (on_first % 2 == 0) != is_forward(passes[p])) ++now;
    set_at_distances(table, p, now, stride);
  }
  return table;
}

PipelineTable alternating_table(const PipelineShape& shape) {
  return shape.has_chunks ? interleaved().table(shape) : at_distances(shape);
}

double alternating_kept(double stages, double microbatches, double chunks) {
  return chunks > 1 ? interleaved().kept(stages, microbatches, chunks)
                    : std::min(microbatches, stages);
}

}  // namespace

ScheduleRow one_forward_one_backward() {
  return {.what = {.name = "1f1b",
                   .description =
                       "forward and backward alternate, and the activations of at most as many "
                       "microbatches as there are stages are kept; interleaved, with several "
                       "chunks of layers a stage (layers:pipe*2)",
                   .most_chunks = std::numeric_limits<int64_t>::max()},
          .table = alternating_table,
          .kept = alternating_kept};
}

}  // namespace tessera
