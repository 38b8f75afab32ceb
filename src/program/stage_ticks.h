// How long the stages of a Program's pipelines are idle, in ticks.
#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"

namespace tessera {

/// The microbatch for which a stage runs its layers in a tick; -1 if it does not run this share.
int64_t microbatch_in_tick(const LoopStep& share, int64_t tick, int64_t stage);

/// All loops over ticks of a function with one axis and number of microbatches, as the two passes
/// of GPipe. A stage runs layers in `busy` of the `ticks` in which any stage does.
struct StageCount {
  int axis = 0;
  int64_t stages = 1, microbatches = 1, ticks = 0, busy = 0;
};
std::vector<StageCount> count_stages(const Program& program, const Function& function);

}  // namespace tessera
