// The schedule of a pipeline as a table: what each stage does in each tick, with which microbatch.
// Lowering, prices, the planner and pages read it; src/program/schedules/ makes it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tessera {

/// What a stage computes with a chunk of its layers. backward: all gradients, or those of the
/// chunk's input where its parameters have a pass `weights` of their own.
enum class StageWork : uint8_t { none, forward, backward, weights };
const char* to_string(StageWork work);

/// Each microbatch runs through all passes, one after the other: chunks of layers forward, then
/// their gradients. A pass goes over all stages, in ascending or descending order. A pass `weights`
/// comes behind the backward pass of its chunk and goes from no stage to another one; a stage runs
/// those of a microbatch in their order, since sums over layers go from chunk to chunk.
struct PipelinePass {
  StageWork work = StageWork::forward;
  bool ascends = true;
};

/// What is to be scheduled.
struct PipelineShape {
  std::vector<PipelinePass> passes;
  int64_t stages = 1, microbatches = 1;
  bool has_chunks = false;  ///< a stage has several chunks of consecutive layers
};

/// One work of a stage.
struct ScheduledWork {
  size_t pass = 0;
  int64_t microbatch = 0;
  bool operator==(const ScheduledWork&) const = default;
};

/// A pass on a stage.
struct PassStage {
  size_t pass = 0;
  int64_t stage = 0;
};

/// In a tick a stage runs a pass for one microbatch, with what another work made in an earlier tick
/// (`source`), whose stage sends it if it is another one.
class PipelineTable {
 public:
  explicit PipelineTable(PipelineShape shape);

  const std::vector<PipelinePass>& passes() const { return shape_.passes; }
  int64_t stages() const { return shape_.stages; }
  int64_t microbatches() const { return shape_.microbatches; }
  int64_t ticks() const { return ticks_; }

  /// By microbatch, ascending: the ticks of a pass on a stage. -1: not scheduled yet.
  const std::vector<int64_t>& ticks_of(size_t pass, int64_t stage) const {
    return at_[pass][static_cast<size_t>(stage)];
  }
  int64_t tick_of(const ScheduledWork& work, int64_t stage) const {
    return ticks_of(work.pass, stage)[static_cast<size_t>(work.microbatch)];
  }
  void set_tick(const ScheduledWork& work, int64_t stage, int64_t tick);

  int64_t first_stage(size_t pass) const { return passes()[pass].ascends ? 0 : stages() - 1; }
  int64_t last_stage(size_t pass) const { return stages() - 1 - first_stage(pass); }
  /// Whose result a pass on a stage begins with. None: what comes before the layers.
  std::optional<PassStage> source(size_t pass, int64_t stage) const;
  /// Which pass, other than `weights`, begins with the result. None: what comes behind the layers.
  std::optional<PassStage> target(size_t pass, int64_t stage) const;

  /// What a stage does, in order.
  std::vector<ScheduledWork> works_of(int64_t stage) const;
  /// The most microbatches of a stage at one time whose activations are kept: from forward until
  /// no later pass of the chunk reads them. Of stages with several chunks, each counts.
  int64_t most_kept(int64_t stage) const;

 private:
  PipelineShape shape_;
  std::vector<std::vector<std::vector<int64_t>>> at_;  ///< tick by pass, stage, microbatch
  int64_t ticks_ = 0;
};

/// A pass that stage s runs for microbatch m in tick first + stride * m + by_stage * s, where
/// by_stage is 1 or -1.
struct TickDistances {
  int64_t first = 0, stride = 1, by_stage = 1;
};
/// None if the ticks of a pass have no such distances. For at least 2 stages and microbatches.
std::optional<TickDistances> distances_of(const PipelineTable& table, size_t pass);

/// The table in which each stage runs its list in order, each work as soon as it can. `lists`: by
/// stage, each work of the shape once.
PipelineTable run_lists(const PipelineShape& shape,
                        const std::vector<std::vector<ScheduledWork>>& lists);

}  // namespace tessera
