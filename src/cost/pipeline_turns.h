// What the stages of a pipeline do, turn by turn: the one description of GPipe, 1F1B and
// interleaved 1F1B, for the lowering that runs them and for the player that prices them.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/compile_options.h"

namespace tessera {

/// A microbatch runs through passes, one after the other: chunks of layers forward, then their
/// gradients. A forward pass goes from the first stage to the last, a backward one the other way.
struct PipelinePasses {
  std::vector<bool> is_forward;  ///< in order: all that are forward come first
  /// A stage has several chunks of consecutive layers, and one list of all its work: interleaved
  /// 1F1B, in the order of Megatron-LM. False: every pass has turns at fixed distances.
  bool interleaved = false;
};

/// In a turn a stage runs a pass for one microbatch, with what the stage before made in an earlier
/// turn.
struct PipelineTurns {
  int64_t stages = 1, microbatches = 1;
  int64_t count = 0;  ///< of turns
  /// By pass and stage: the turn of each microbatch, ascending.
  std::vector<std::vector<std::vector<int64_t>>> of;
};

/// gpipe: each pass has turns of its own, from 0 on. one_forward_one_backward: all passes share
/// them. Interleaved passes are for the latter. Any numbers of stages and microbatches.
PipelineTurns pipeline_turns(PipelineSchedule schedule, const PipelinePasses& passes,
                             int64_t stages, int64_t microbatches);

/// One forward or backward of a stage.
struct StageWork {
  size_t pass = 0;
  int64_t microbatch = 0;
  bool operator==(const StageWork&) const = default;
};

/// What a stage does, in order.
std::vector<StageWork> work_of_stage(const PipelineTurns& turns, size_t stage);

/// The most forwards of a stage that are ahead of their backwards at one time.
int64_t most_ahead(const PipelineTurns& turns, const PipelinePasses& passes, size_t stage);

}  // namespace tessera
