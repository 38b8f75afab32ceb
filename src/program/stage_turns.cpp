#include "program/stage_turns.h"

#include <algorithm>

#include "program/loop_runs.h"

namespace tessera {

namespace {

/// The iterations of a share that run in a turn on a stage: [first, second).
std::pair<int64_t, int64_t> iterations_in_turn(const Step& share, int64_t turn, int64_t stage) {
  if (has_table_of_stages(share)) {
    const int64_t entry = entry_of(share, turn, stage);
    return {entry, entry < 0 ? entry : entry + 1};
  }
  const int axis = share.exprs[1].axis_terms.at(0).first, turns = share.exprs[1].scalar;
  std::vector<int> coordinates(static_cast<size_t>(axis) + 1, 0);
  coordinates.back() = static_cast<int>(stage);
  std::vector<int64_t> scalars(static_cast<size_t>(turns) + 1, 0);
  scalars.back() = turn;
  const auto value = [&](size_t expr) {
    return share.exprs[expr].eval(coordinates, scalars.data());
  };
  const int64_t first = value(0);
  return {std::max(first, value(1)), std::min(first + share.loop.iterations, value(2))};
}

void add_counts(const Program& program, const Function& function, std::vector<StageCount>& all) {
  for (const Step& step : function.steps) {
    for (const Function& body : step.body) {
      add_counts(program, body, all);
      StageCount count;
      std::vector<const Step*> shares;
      for (const Step& share : body.steps) {
        const bool has_stages = share.attrs.has("microbatches");
        if (has_stages && !share.exprs[1].axis_terms.empty()) shares.push_back(&share);
      }
      if (shares.empty()) continue;
      count.axis = shares[0]->exprs[1].axis_terms.at(0).first;
      count.stages = program.axis_sizes[static_cast<size_t>(count.axis)];
      count.microbatches = shares[0]->attrs.get<int64_t>("microbatches");
      for (int64_t turn = 0; turn < shares[0]->attrs.get<int64_t>("turns"); ++turn) {
        bool any = false;
        for (int64_t stage = 0; stage < count.stages; ++stage) {
          const bool works = std::any_of(shares.begin(), shares.end(), [&](const Step* share) {
            return microbatch_in_turn(*share, turn, stage) >= 0;
          });
          any = any || works;
          count.busy += works && stage == 0;
        }
        count.turns += any;
      }
      const auto same = std::find_if(all.begin(), all.end(), [&](const StageCount& other) {
        return other.axis == count.axis && other.microbatches == count.microbatches;
      });
      if (same == all.end()) {
        all.push_back(count);
      } else {
        same->turns += count.turns;
        same->busy += count.busy;
      }
    }
  }
}

}  // namespace

int64_t microbatch_in_turn(const Step& share, int64_t turn, int64_t stage) {
  const auto [first, end] = iterations_in_turn(share, turn, stage);
  // Layers that are in no loop over microbatches run for one: their iterations are layers.
  return first >= end ? -1 : std::min(first, share.attrs.get<int64_t>("microbatches") - 1);
}

bool is_backward(const Step& share) {
  if (share.loop.reverse) return true;
  return std::any_of(share.body.begin(), share.body.end(), [](const Function& body) {
    return std::any_of(body.steps.begin(), body.steps.end(),
                       [](const Step& step) { return !step.body.empty() && is_backward(step); });
  });
}

std::vector<StageCount> count_stages(const Program& program, const Function& function) {
  std::vector<StageCount> all;
  add_counts(program, function, all);
  return all;
}

}  // namespace tessera
