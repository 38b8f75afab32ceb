#include "cost/stage_ops.h"

#include <algorithm>

#include "cost/rank_simulator.h"
#include "program/loop_runs.h"

namespace tessera {

namespace {

bool is_along(const Step& step, int axis) {
  return step.kind == StepKind::collective &&
         std::find(step.axes.begin(), step.axes.end(), axis) != step.axes.end();
}

/// True if steps, or those of loops in them, have a collective along an axis.
bool has_collective_along(const Function& function, int axis) {
  return std::any_of(function.steps.begin(), function.steps.end(), [&](const Step& step) {
    return is_along(step, axis) || (!step.body.empty() && has_collective_along(step.body[0], axis));
  });
}

/// Adds the numbers of the buckets along an axis that are in no inner loop.
void add_numbers(const Function& function, int axis, std::set<int>& numbers) {
  for (const Step& step : function.steps) {
    if (is_along(step, axis)) numbers.insert(step.number);
    if (step.loop.share) add_numbers(step.body[0], axis, numbers);
  }
}

/// Each rank has iterations of its own, in every tick the same.
bool is_of_rank(const LoopStep& loop) { return loop.end >= 0 && !loop.share; }

void add_windows(std::span<const Step> steps, std::span<const int> coordinates,
                 std::vector<int64_t>& windows) {
  for (const Step& step : steps) {
    if (step.body.empty()) continue;
    if (is_of_rank(step.loop)) windows.push_back(iterations_on(step.loop, coordinates));
    add_windows(step.body[0].steps, coordinates, windows);
  }
}

/// Simulates steps one after the other and notes what lies between transfers of stages.
class OpList {
 public:
  OpList(const Costs& costs, bool shorten, int axis, const std::set<int>& between, int stage)
      : axis_(axis),
        between_(between),
        simulator_(costs, shorten, coordinates(costs, axis, stage)) {}

  void add(std::span<const Step> steps, int number) {
    for (size_t s = 0; s < steps.size();) {
      const Step& step = steps[s];
      size_t end = s + 1;
      if (is_along(step, axis_)) {
        while (end < steps.size() && steps[end].kind == StepKind::collective &&
               steps[end].number == step.number)
          ++end;
        push({StageOp::Kind::start, 0, 0, steps.subspan(s, end - s), number, step.number});
      } else if (step.kind == StepKind::wait && between_.contains(step.number)) {
        push({.kind = StageOp::Kind::wait, .number = step.number});
      } else {
        if (!step.body.empty() && has_collective_along(step.body[0], axis_))
          push({.kind = StageOp::Kind::meet});
        while (end < steps.size() && is_work(steps[end])) ++end;
        work([&](RankSimulator& simulator) {
          simulator.simulate(steps.subspan(s, end - s), number);
        });
      }
      for (; s < end; ++s) number += 1 + steps_inside(steps[s]);
    }
  }
  template <class Run>
  void work(const Run& run) {
    const double seconds = simulator_.seconds(), compute = simulator_.computed();
    push({});
    run(simulator_);
    ops_.ops.back().seconds = simulator_.seconds() - seconds;
    ops_.ops.back().compute = simulator_.computed() - compute;
  }
  PricedOps finish() {
    work([](RankSimulator& simulator) { simulator.wait_all(); });
    ops_.time = simulator_.finish(true);
    return std::move(ops_);
  }

 private:
  static std::vector<int> coordinates(const Costs& costs, int axis, int stage) {
    std::vector<int> at(costs.mesh().axes().size(), 0);
    at[static_cast<size_t>(axis)] = stage;
    return at;
  }
  bool is_work(const Step& step) const {
    return !is_along(step, axis_) &&
           !(step.kind == StepKind::wait && between_.contains(step.number)) &&
           (step.body.empty() || !has_collective_along(step.body[0], axis_));
  }
  void push(const StageOp& op) {
    ops_.ops.push_back(op);
    ops_.spans_before.push_back(simulator_.spans());
    ops_.begins.push_back(simulator_.now());
  }

  const int axis_;
  const std::set<int>& between_;
  RankSimulator simulator_;
  PricedOps ops_;
};

}  // namespace

StageOps::StageOps(const Costs& costs, bool shorten, const Step& loop, int axis)
    : costs_(costs), shorten_(shorten), axis_(axis) {
  add_numbers(loop.body[0], axis, between_);
}

PricedOps& StageOps::of(std::span<const Step> steps, int number, int stage) {
  PricedOps*& known = of_stage_[{&steps[0], stage}];
  if (known != nullptr) return *known;
  std::vector<int> at(costs_.mesh().axes().size(), 0);
  at[static_cast<size_t>(axis_)] = stage;
  std::vector<int64_t> windows;
  add_windows(steps, at, windows);
  PricedOps*& same = of_loops_[{&steps[0], windows}];
  if (same == nullptr) {
    all_.push_back(std::make_unique<PricedOps>(priced(steps, number, stage)));
    same = all_.back().get();
  }
  return *(known = same);
}

PricedOps StageOps::priced(std::span<const Step> steps, int number, int stage) const {
  OpList list(costs_, shorten_, axis_, between_, stage);
  if (!steps[0].loop.share) {
    list.add(steps, number);
  } else if (iterations_of(steps[0].loop) == 1) {
    list.add(steps[0].body[0].steps, number + 1);
  } else {  // all layers of a stage
    list.work(
        [&](RankSimulator& simulator) { simulator.simulate_iterations(steps[0], number + 1); });
  }
  return list.finish();
}

int64_t iterations_on(const LoopStep& loop, std::span<const int> coordinates) {
  if (coordinates.empty() || !is_of_rank(loop)) return iterations_of(loop);
  const auto [first, end] = counters_of(loop, coordinates, nullptr);
  return end - first;
}

}  // namespace tessera
