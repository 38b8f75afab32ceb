// ZB-H1 of Qi et al. 2023, "Zero Bubble Pipeline Parallelism": 1F1B with the gradients of
// parameters behind. Stage s has s microbatches of them left over at any time, so that no stage has
// more than P microbatches between forward and these gradients. What is left over fills the time in
// which the last gradients of inputs go back over the stages. Idle: (P - 1)(F + B - W), with the
// times of a forward, of a gradient of inputs and of one of parameters; a V-th of that with V
// chunks, in the interleaved order.
#include <limits>

#include "program/schedules/alternating_order.h"
#include "program/schedules/schedules.h"

namespace tessera {

namespace {

std::vector<ScheduledWork> zb_h1_list(const PipelineShape& shape, int64_t stage) {
  std::vector<ScheduledWork> list, weights;
  int64_t done = 0;
  for (const ScheduledWork& work : alternating_order(shape, stage)) {
    list.push_back(work);
    if (shape.passes[work.pass].work != StageWork::backward) continue;
    weights.push_back({work.pass + 1, work.microbatch});
    if (std::ssize(weights) - done > stage) list.push_back(weights[static_cast<size_t>(done++)]);
  }
  list.insert(list.end(), weights.begin() + done, weights.end());
  return list;
}

PipelineTable zb_h1_table(const PipelineShape& shape) {
  std::vector<std::vector<ScheduledWork>> lists;
  for (int64_t s = 0; s < shape.stages; ++s) lists.push_back(zb_h1_list(shape, s));
  return run_lists(shape, lists);
}

}  // namespace

ScheduleRow zb_h1() {
  return {.what = {.name = "zb_h1",
                   .description = "1f1b that computes gradients of parameters later, where stages "
                                  "would be idle (ZB-H1)",
                   .most_chunks = std::numeric_limits<int64_t>::max(),
                   .splits_backward = true},
          .table = zb_h1_table,
          .kept = one_forward_one_backward().kept,
          .least_idle = 0};
}

}  // namespace tessera
