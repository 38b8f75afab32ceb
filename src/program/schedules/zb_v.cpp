// ZB-V of Qi et al. 2023, "Zero Bubble Pipeline Parallelism": two chunks of layers a stage. A
// microbatch goes down the stages with the first chunk and back up with the second, so the first
// stage ends forward and begins backward at once. Backward is split, and a stage computes the
// gradients of parameters right behind those of inputs, one chunk after the other with a forward
// before each, until it has no forward left. Then the gradients of inputs hurry ahead.
//
// The table is made tick by tick: in each a stage takes the first of these works that is ready.
// If all works take equally long, with P stages and at least 2P - 1 microbatches, a stage that has
// begun never waits. In the paper that is no bubble at all, since its stages end a step as they
// began it, one after the other. Here a step ends on all stages together, and they are idle for
// P - 1 ticks of a chunk: (P - 1) max(F, B, W) / 2.
#include <algorithm>
#include <deque>

#include "base/fail.h"
#include "program/schedules/schedules.h"

namespace tessera {

namespace {

class Stage {
 public:
  Stage(const PipelineShape& shape, int64_t stage)
      : shape_(shape), stage_(stage), next_(shape.passes.size(), 0) {}

  bool is_done() const { return std::ranges::min(next_) == shape_.microbatches; }

  /// What the stage runs in the next tick, if it can run anything.
  std::optional<ScheduledWork> choose(const PipelineTable& table) const {
    const std::optional<ScheduledWork> forward = latest(table, StageWork::forward),
                                       backward = latest(table, StageWork::backward);
    if (!weights_.empty() && (has_forward() || !backward)) return weights_.front();
    const bool forward_first = last_ == StageWork::weights;
    return forward && (forward_first || !backward) ? forward : backward;
  }

  void run(const ScheduledWork& work) {
    ++next_[work.pass];
    last_ = shape_.passes[work.pass].work;
    if (last_ == StageWork::backward) weights_.push_back({work.pass + 1, work.microbatch});
    if (last_ == StageWork::weights) weights_.pop_front();
  }

 private:
  /// Of the passes that could run, the latest: it ends what has begun.
  std::optional<ScheduledWork> latest(const PipelineTable& table, StageWork work) const {
    std::optional<ScheduledWork> found;
    for (size_t p = 0; p < next_.size(); ++p) {
      if (shape_.passes[p].work == work && is_ready(table, p)) found = {p, next_[p]};
    }
    return found;
  }

  bool has_forward() const {
    for (size_t p = 0; p < next_.size(); ++p) {
      if (shape_.passes[p].work == StageWork::forward && next_[p] < shape_.microbatches)
        return true;
    }
    return false;
  }

  /// No more than 2P microbatches are under way on a stage, each in one of its two chunks.
  bool is_ready(const PipelineTable& table, size_t pass) const {
    if (next_[pass] == shape_.microbatches) return false;
    if (pass == 0 && next_[0] - std::ranges::min(next_) == 2 * shape_.stages) return false;
    const std::optional<PassStage> source = table.source(pass, stage_);
    return !source || table.tick_of({source->pass, next_[pass]}, source->stage) >= 0;
  }

  const PipelineShape& shape_;
  int64_t stage_;
  std::vector<int64_t> next_;          ///< by pass: the next microbatch
  std::deque<ScheduledWork> weights_;  ///< those that could run, in order
  StageWork last_ = StageWork::none;
};

PipelineTable zb_v_table(const PipelineShape& shape) {
  PipelineTable table(shape);
  std::vector<Stage> stages;
  for (int64_t s = 0; s < shape.stages; ++s) stages.emplace_back(shape, s);
  while (!std::ranges::all_of(stages, &Stage::is_done)) {
    const int64_t tick = table.ticks();
    std::vector<std::optional<ScheduledWork>> chosen;
    for (const Stage& stage : stages) chosen.push_back(stage.choose(table));
    for (size_t s = 0; s < stages.size(); ++s) {
      if (!chosen[s]) continue;
      stages[s].run(*chosen[s]);
      table.set_tick(*chosen[s], static_cast<int64_t>(s), tick);
    }
    TESSERA_CHECK(table.ticks() > tick, "tick {} of a pipeline: all stages wait", tick);
  }
  return table;
}

/// At most two chunks of P microbatches on any stage, but all stages have buffers of one size: the
/// first stage keeps the first chunk of 2P microbatches, the last one the second chunk of P.
double zb_v_kept(double stages, double microbatches, double) {
  return (std::min(microbatches, 2 * stages) + std::min(microbatches, stages)) / 2;
}

}  // namespace

ScheduleRow zb_v() {
  return {.what = {.name = "zb_v",
                   .description = "two chunks of layers a stage, the second in reverse order of "
                                  "stages, with gradients of parameters apart so that stages are "
                                  "hardly ever idle (ZB-V)",
                   .least_chunks = 2,
                   .most_chunks = 2,
                   .splits_backward = true},
          .table = zb_v_table,
          .kept = zb_v_kept,
          .turns = true,
          .least_idle = 0};
}

}  // namespace tessera
