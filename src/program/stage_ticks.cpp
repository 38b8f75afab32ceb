#include "program/stage_ticks.h"

#include <algorithm>

namespace tessera {

namespace {

/// A loop over the layers themselves runs for one microbatch.
bool is_of_layers(const LoopStep& share) { return share.end >= 0; }

StageCount count_ticks(const Program& program, int axis, const Function& tick) {
  std::vector<const LoopStep*> shares;
  for (const Step& step : tick.steps) {
    const std::optional<PipelineShare>& share = step.loop.share;
    if (share && share->work != StageWork::none) shares.push_back(&step.loop);
  }
  StageCount count{axis, program.axis_sizes[static_cast<size_t>(axis)]};
  count.microbatches = is_of_layers(*shares.at(0)) ? 1 : shares[0]->iterations;
  for (int64_t t = 0; t < shares[0]->share->ticks; ++t) {
    const auto works = [&](int64_t stage) {
      return std::any_of(shares.begin(), shares.end(), [&](const LoopStep* share) {
        return share->share->iteration(t, stage) >= 0;
      });
    };
    bool any = false;
    for (int64_t stage = 0; stage < count.stages; ++stage) any = any || works(stage);
    count.ticks += any;
    count.busy += works(0);
  }
  return count;
}

void add_counts(const Program& program, const Function& function, std::vector<StageCount>& all) {
  for (const Step& step : function.steps) {
    for (const Function& body : step.body) {
      add_counts(program, body, all);
      if (step.loop.stage_axis < 0) continue;
      const StageCount count = count_ticks(program, step.loop.stage_axis, body);
      const auto same = std::find_if(all.begin(), all.end(), [&](const StageCount& other) {
        return other.axis == count.axis && other.microbatches == count.microbatches;
      });
      if (same == all.end()) {
        all.push_back(count);
      } else {
        same->ticks += count.ticks;
        same->busy += count.busy;
      }
    }
  }
}

}  // namespace

int64_t microbatch_in_tick(const LoopStep& share, int64_t tick, int64_t stage) {
  const int64_t run = share.share->iteration(tick, stage);
  return is_of_layers(share) ? std::min<int64_t>(run, 0) : run;
}

std::vector<StageCount> count_stages(const Program& program, const Function& function) {
  std::vector<StageCount> all;
  add_counts(program, function, all);
  return all;
}

}  // namespace tessera
