// Which stage of a pipeline works on what, turn by turn.
#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"

namespace tessera {

// A share is a step in a loop over turns: see program/loop_runs.h. With the attribute
// "microbatches" it is forward or backward of a stage's layers, else what all stages do together.

/// The microbatch for which a stage runs a share in a turn; -1 if it does not run it.
int64_t microbatch_in_turn(const Step& share, int64_t turn, int64_t stage);
/// True if a stage's layers run backward in this share.
bool is_backward(const Step& share);

/// All loops over turns of a function with one axis and number of microbatches, as the two passes
/// of GPipe. A stage runs layers in `busy` of the `turns` in which any stage does.
struct StageCount {
  int axis = 0;
  int64_t stages = 1, microbatches = 1, turns = 0, busy = 0;
};
std::vector<StageCount> count_stages(const Program& program, const Function& function);

}  // namespace tessera
