// What a stage of a pipeline does in a tick, as a list of ops, and what that costs.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "cost/function_time.h"
#include "cost/stage_simulator.h"

namespace tessera {

/// The ops of a run, its figures without those of transfers between stages, and its spans.
struct PricedOps {
  std::vector<StageOp> ops;
  std::vector<size_t> spans_before;  ///< of each op: how many of time.spans come before it
  std::vector<double> begins;        ///< of each op, if transfers between stages take no time
  FunctionTime time;                 ///< with spans, in the order in which they end
  int64_t runs = 0;                  ///< counted by who simulates them
};

/// Prices what each stage runs once: a run costs the same in every tick.
class StageOps {
 public:
  /// `loop`: over ticks, along the mesh axis `axis`. Keeps references.
  StageOps(const Costs& costs, bool shorten, const Step& loop, int axis);

  /// For StageSimulator::OpsOf.
  PricedOps& of(std::span<const Step> steps, int number, int stage);
  /// All that were asked for.
  const std::vector<std::unique_ptr<PricedOps>>& all() const { return all_; }

 private:
  PricedOps priced(std::span<const Step> steps, int number, int stage) const;

  const Costs& costs_;
  const bool shorten_;
  const int axis_;
  std::set<int> between_;  ///< numbers of the buckets that other stages take part in
  std::vector<std::unique_ptr<PricedOps>> all_;
  std::map<std::pair<const Step*, int>, PricedOps*> of_stage_;  ///< by first step and stage
  std::map<std::pair<const Step*, std::vector<int64_t>>, PricedOps*> of_loops_;
};

/// The iterations that the rank at `coordinates` runs of a loop which is no share of a tick.
int64_t iterations_on(const LoopStep& loop, std::span<const int> coordinates);

}  // namespace tessera
