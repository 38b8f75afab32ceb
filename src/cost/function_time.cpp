#include "cost/function_time.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "cost/stream_simulator.h"
#include "program/loop_runs.h"

namespace tessera {

namespace {

constexpr int64_t kPlayed = 8;  ///< iterations of a loop until the time per iteration is steady

void add_steps(const Function& function, std::vector<const Step*>& steps) {
  for (const Step& step : function.steps) {
    steps.push_back(&step);
    for (const Function& body : step.body) add_steps(body, steps);
  }
}

/// The number of steps in the bodies of a loop, nested loops included.
int steps_inside(const Step& loop) {
  std::vector<const Step*> steps;
  for (const Function& body : loop.body) add_steps(body, steps);
  return static_cast<int>(steps.size());
}

class Player {
 public:
  Player(const Costs& costs, bool shorten)
      : costs_(costs), shorten_(shorten), lanes_(costs.machine().overlap) {}

  void play(const Function& function) {
    play(function.steps, 0);
    lanes_.wait_all();
  }

  FunctionTime finish(bool spans) {
    for (size_t c = 0; c < time_.collectives.size(); ++c) {
      CollectiveTime& row = time_.collectives[c];
      row.exposed = lanes_.exposed(static_cast<int>(c));
      AxisTime& sum = time_.by_axes[lane_of(row.axes) - 1];
      sum.bytes += row.bytes;
      sum.seconds += row.seconds;
      sum.exposed += row.exposed;
      time_.exposed += row.exposed;
    }
    time_.seconds = lanes_.now();
    time_.compute = lanes_.computed();
    time_.slowed = lanes_.slowed();
    add(time_, skipped_, 1);
    if (spans) {
      for (const StreamSimulator::Span& span : lanes_.spans())
        time_.spans.push_back({span.id, span.lane, span.begin, span.seconds});
    }
    return std::move(time_);
  }

 private:
  /// The lane (from 1) of a set of axes; adds a lane for a new set.
  int lane_of(const std::vector<int>& axes) {
    auto it = std::find_if(time_.by_axes.begin(), time_.by_axes.end(),
                           [&](const AxisTime& a) { return a.axes == axes; });
    if (it == time_.by_axes.end()) it = time_.by_axes.insert(it, {axes, 0, 0, 0});
    return static_cast<int>(it - time_.by_axes.begin()) + 1;
  }

  double seconds_of(const Step& step) {
    const auto [it, is_new] = seconds_.try_emplace(&step, 0.0);
    if (is_new) it->second = costs_.compute(step);
    return it->second;
  }

  /// `number`: the first step's, in all_steps().
  void play(std::span<const Step> steps, int number) {
    for (size_t s = 0; s < steps.size(); ++s) {
      const Step& step = steps[s];
      const int mine = number;
      number += 1 + steps_inside(step);
      if (step.kind == StepKind::wait) {
        if (auto it = under_way_.find({step.number, odd_}); it != under_way_.end())
          lanes_.wait(it->second);
      } else if (!step.body.empty()) {
        play_loop(step, mine + 1);
      } else if (step.kind == StepKind::compute) {
        lanes_.compute(seconds_of(step), mine);
      } else {
        size_t end = s + 1;
        while (end < steps.size() && steps[end].kind == StepKind::collective &&
               steps[end].number == step.number)
          ++end;
        start(mine, steps.subspan(s, end - s));
        number += static_cast<int>(end - s) - 1;
        s = end - 1;
      }
    }
  }

  /// Simulates a loop in the order of the executor: some buckets start an iteration early, some are
  /// awaited an iteration late.
  void play_loop(const Step& loop, int number) {
    const Function& body = loop.body[0];
    const std::span<const Step> steps(body.steps);
    const size_t stores = static_cast<size_t>(body.first_update);
    const size_t early = static_cast<size_t>(body.early);
    const size_t late = stores - static_cast<size_t>(body.late);
    const bool outside = odd_;
    const int64_t turn = turn_;
    if (!runs_in_turn(loop, turn, stage_)) return;
    const bool has_shares = std::any_of(steps.begin(), steps.end(),
                                        [](const Step& step) { return step.attrs.has("turns"); });
    const bool shortens = shorten_ && !has_shares;
    auto run = [&](int64_t iteration, size_t first, size_t last) {
      int skipped = 0;
      for (const Step& step : steps.first(first)) skipped += 1 + steps_inside(step);
      odd_ = iteration % 2 != 0;
      turn_ = iteration;
      if (has_shares) stage_ = working_stage(body, turn_);
      play(steps.subspan(first, last - first), number + skipped);
    };
    run(0, 0, early);
    FunctionTime before;
    const int64_t count = iterations_of(loop);
    for (int64_t iteration = 0; iteration < count; ++iteration) {
      if (shortens && iteration == kPlayed - 2) before = totals();
      if (shortens && iteration == kPlayed)
        iteration += skip_iterations(before, count - 1 - iteration);
      if (iteration + 1 < count) run(iteration + 1, 0, early);
      run(iteration, early, late);
      if (iteration > 0) run(iteration - 1, late, stores);
      run(iteration, stores, steps.size());
    }
    run(count - 1, late, stores);
    odd_ = outside;
    turn_ = turn;
  }

  /// The totals so far.
  FunctionTime totals() const {
    FunctionTime sum;
    sum.seconds = lanes_.now();
    sum.compute = lanes_.computed();
    sum.slowed = lanes_.slowed();
    sum.by_axes = time_.by_axes;
    for (size_t c = 0; c < time_.collectives.size(); ++c) {
      const CollectiveTime& row = time_.collectives[c];
      const double exposed = lanes_.exposed(static_cast<int>(c));
      for (AxisTime& axes : sum.by_axes) {
        if (axes.axes == row.axes)
          axes.bytes += row.bytes, axes.seconds += row.seconds, axes.exposed += exposed;
      }
      sum.exposed += exposed;
    }
    add(sum, skipped_, 1);
    return sum;
  }

  static void add(FunctionTime& to, const FunctionTime& from, double times) {
    to.seconds += times * from.seconds;
    to.compute += times * from.compute;
    to.slowed += times * from.slowed;
    to.exposed += times * from.exposed;
    for (const AxisTime& axes : from.by_axes) {
      auto it = std::find_if(to.by_axes.begin(), to.by_axes.end(),
                             [&](const AxisTime& a) { return a.axes == axes.axes; });
      if (it == to.by_axes.end()) it = to.by_axes.insert(it, {axes.axes, 0, 0, 0});
      it->bytes += static_cast<int64_t>(times) * axes.bytes;
      it->seconds += times * axes.seconds;
      it->exposed += times * axes.exposed;
    }
  }

  /// Extrapolates up to `most` iterations, an even number of them, from the last two, which ran
  /// since `before`. Returns how many.
  int64_t skip_iterations(const FunctionTime& before, int64_t most) {
    const int64_t iterations = most / 2 * 2;
    FunctionTime two = totals();
    add(two, before, -1);
    add(skipped_, two, static_cast<double>(iterations / 2));
    return iterations;
  }

  void start(int first, std::span<const Step> members) {
    CollectiveTime row{first, static_cast<int>(members.size()), members[0].axes,
                       0,     costs_.bucket(members),           0};
    for (const Step& member : members) row.bytes += member.bytes;
    under_way_[{members[0].number, odd_}] = lanes_.start(row.seconds, lane_of(row.axes), first);
    time_.collectives.push_back(std::move(row));
  }

  const Costs& costs_;
  const bool shorten_;
  StreamSimulator lanes_;
  FunctionTime skipped_;  ///< of extrapolated iterations
  std::map<std::pair<int, bool>, int>
      under_way_;  ///< (bucket number, iteration is odd) -> transfer
  bool odd_ = false;
  int64_t turn_ = 0;   ///< the iteration of the innermost loop
  int64_t stage_ = 0;  ///< of those with tables, the stage that is played in this turn
  std::unordered_map<const Step*, double> seconds_;
  FunctionTime time_;
};

}  // namespace

std::vector<const Step*> all_steps(const Function& function) {
  std::vector<const Step*> steps;
  add_steps(function, steps);
  return steps;
}

FunctionTime time_of(const Function& function, const Costs& costs, bool spans) {
  Player player(costs, false);
  player.play(function);
  return player.finish(spans);
}

FunctionTime total_time(const Function& function, const Costs& costs) {
  Player player(costs, true);
  player.play(function);
  FunctionTime time = player.finish(false);
  time.collectives.clear();
  return time;
}

}  // namespace tessera
