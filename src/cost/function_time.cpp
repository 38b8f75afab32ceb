#include "cost/function_time.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <unordered_map>

#include "cost/stream_simulator.h"
#include "program/loop_runs.h"
#include "program/stage_turns.h"

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

/// True if steps, or those of loops in them, wait for all ranks along an axis.
bool waits_for_all(const Function& function, int axis) {
  return std::any_of(function.steps.begin(), function.steps.end(), [&](const Step& step) {
    const bool reduces =
        step.kind == StepKind::collective && step.collective != CollectiveKind::exchange;
    return (reduces && std::count(step.axes.begin(), step.axes.end(), axis) > 0) ||
           (!step.body.empty() && waits_for_all(step.body[0], axis));
  });
}

/// True if all stages of a loop over turns wait for each other for every microbatch.
bool is_in_step(const Function& turn) {
  int axis = -1;
  for (const Step& share : turn.steps) {
    if (share.attrs.has("microbatches") && !share.exprs[1].axis_terms.empty())
      axis = share.exprs[1].axis_terms[0].first;
  }
  return std::any_of(turn.steps.begin(), turn.steps.end(), [&](const Step& share) {
    return !share.body.empty() && !share.attrs.has("microbatches") &&
           waits_for_all(share.body[0], axis);
  });
}

class Player {
 public:
  Player(const Costs& costs, bool shorten)
      : costs_(costs), shorten_(shorten), lanes_(costs.machine().overlap) {}

  void play(const Function& function) {
    time_.shares.assign(all_steps(function).size(), 1);
    play(function.steps, 0);
    lanes_.wait_all();
  }

  FunctionTime finish(bool spans) {
    const FunctionTime sum = totals();
    for (size_t c = 0; c < time_.collectives.size(); ++c)
      time_.collectives[c].exposed = lanes_.exposed(static_cast<int>(c));
    add(time_, sum, 1);
    if (spans) {
      for (const StreamSimulator::Span& span : lanes_.spans())
        time_.spans.push_back({span.id, span.lane, span.begin, span.seconds});
    } else {
      time_.turns.clear();
    }
    return std::move(time_);
  }

 private:
  /// What stages do for microbatches in a loop over turns, as played.
  struct Share {
    int64_t runs = 0;
    int first = 0, end = 0;  ///< its steps, in all_steps()
    double computed = 0, slowed = 0;
    FunctionTime skipped;  ///< of extrapolated iterations
  };

  /// The lane of a set of axes, from 0; the number of lanes if it has none.
  size_t lane_of(const std::vector<int>& axes) const {
    return static_cast<size_t>(std::find_if(time_.by_axes.begin(), time_.by_axes.end(),
                                            [&](const AxisTime& a) { return a.axes == axes; }) -
                               time_.by_axes.begin());
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
        std::deque<int>& started = under_way_[{step.number, odd_}];
        if (started.empty()) continue;
        lanes_.wait(started.front());
        started.pop_front();
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

  /// `number`: of the first step of the body.
  void play_loop(const Step& loop, int number) {
    if (!runs_in_turn(loop, turn_, stage_)) return;
    const std::vector<Step>& steps = loop.body[0].steps;
    if (std::any_of(steps.begin(), steps.end(),
                    [](const Step& step) { return step.attrs.has("turns"); })) {
      play_turns(loop, number);
    } else if (loop.attrs.has("turns")) {
      play_share(loop, number);
    } else {
      play_iterations(loop, number, false);
    }
  }

  /// Simulates a pipeline's loop over turns. What stages do while one has no work goes from the
  /// other figures to the bubble.
  void play_turns(const Step& loop, int number) {
    std::map<const Step*, Share> mine;
    std::map<const Step*, Share>* const outside = shares_;
    const size_t collectives = time_.collectives.size();
    std::fill_n(time_.shares.begin() + number, steps_inside(loop), 1);
    shares_ = &mine;
    play_iterations(loop, number, true);
    shares_ = outside;
    FunctionTime forward, backward;
    for (const auto& [step, share] : mine) {
      const auto microbatches = static_cast<double>(step->attrs.get<int64_t>("microbatches"));
      const double own = std::min(1.0, microbatches / static_cast<double>(share.runs));
      std::fill(time_.shares.begin() + share.first, time_.shares.begin() + share.end, own);
      double seconds = share.computed + share.slowed + share.skipped.seconds;
      for (size_t c = collectives; c < time_.collectives.size(); ++c) {
        const int first = time_.collectives[c].step;
        if (first >= share.first && first < share.end)
          seconds += lanes_.exposed(static_cast<int>(c));
      }
      moved_.compute -= (1 - own) * share.computed;
      moved_.slowed -= (1 - own) * share.slowed;
      moved_.bubble += (1 - own) * seconds;
      moved_.bubble_compute += (1 - own) * (share.computed + share.skipped.compute);
      FunctionTime& pass = is_backward(*step) ? backward : forward;
      pass.seconds += seconds;
      pass.compute += share.computed + share.skipped.compute;
      skipped_.seconds += (1 - own) * share.skipped.seconds;
      add(skipped_, share.skipped, own);
    }
    if (is_in_step(loop.body[0])) wait_in_step(forward, backward);
  }

  /// In a turn some stages run forward and others backward. If all wait for each other, each turn
  /// takes as long as the longer of both.
  void wait_in_step(const FunctionTime& forward, const FunctionTime& backward) {
    if (forward.seconds == 0 || backward.seconds == 0) return;
    const double more = std::abs(backward.seconds - forward.seconds);
    moved_.seconds += more;
    moved_.bubble += more;
    moved_.bubble_compute += std::min(more, std::abs(backward.compute - forward.compute));
  }

  /// Simulates what runs in a turn of a pipeline: a microbatch on some stages, or on all.
  void play_share(const Step& loop, int number) {
    const double begin = lanes_.now(), computed = lanes_.computed(), slowed = lanes_.slowed();
    const bool is_of_stage = loop.attrs.has("microbatches") && shares_ != nullptr;
    if (is_of_stage) share_ = &(*shares_)[&loop];
    play_iterations(loop, number, false);
    time_.turns.push_back({number - 1, turn_, begin, lanes_.now() - begin});
    if (!is_of_stage) return;
    ++share_->runs;
    share_->first = number - 1;
    share_->end = number + steps_inside(loop);
    share_->computed += lanes_.computed() - computed;
    share_->slowed += lanes_.slowed() - slowed;
    share_ = nullptr;
  }

  /// Simulates a loop in the order of the executor: some buckets start an iteration early, some are
  /// awaited an iteration late.
  void play_iterations(const Step& loop, int number, bool has_shares) {
    const Function& body = loop.body[0];
    const std::span<const Step> steps(body.steps);
    const size_t stores = static_cast<size_t>(body.first_update);
    const size_t early = static_cast<size_t>(body.early);
    const size_t late = stores - static_cast<size_t>(body.late);
    const bool outside = odd_;
    const int64_t turn = turn_;
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
    std::vector<double> bytes(sum.by_axes.size());
    for (size_t c = 0; c < time_.collectives.size(); ++c) {
      const CollectiveTime& row = time_.collectives[c];
      const double own = time_.shares[static_cast<size_t>(row.step)],
                   exposed = own * lanes_.exposed(static_cast<int>(c));
      const size_t lane = lane_of(row.axes);
      bytes[lane] += own * static_cast<double>(row.bytes);
      sum.by_axes[lane].seconds += own * row.seconds;
      sum.by_axes[lane].exposed += exposed;
      sum.exposed += exposed;
    }
    for (size_t lane = 0; lane < bytes.size(); ++lane)
      sum.by_axes[lane].bytes = std::llround(bytes[lane]);
    add(sum, moved_, 1);
    add(sum, skipped_, 1);
    if (share_ != nullptr) add(sum, share_->skipped, 1);
    return sum;
  }

  static void add(FunctionTime& to, const FunctionTime& from, double times) {
    to.seconds += times * from.seconds;
    to.compute += times * from.compute;
    to.slowed += times * from.slowed;
    to.exposed += times * from.exposed;
    to.bubble += times * from.bubble;
    to.bubble_compute += times * from.bubble_compute;
    for (const AxisTime& axes : from.by_axes) {
      auto it = std::find_if(to.by_axes.begin(), to.by_axes.end(),
                             [&](const AxisTime& a) { return a.axes == axes.axes; });
      if (it == to.by_axes.end()) it = to.by_axes.insert(it, {axes.axes, 0, 0, 0});
      it->bytes += std::llround(times * static_cast<double>(axes.bytes));
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
    add(share_ != nullptr ? share_->skipped : skipped_, two, static_cast<double>(iterations / 2));
    return iterations;
  }

  void start(int first, std::span<const Step> members) {
    CollectiveTime row{first, static_cast<int>(members.size()), members[0].axes,
                       0,     costs_.bucket(members),           0};
    for (const Step& member : members) row.bytes += member.bytes;
    const size_t lane = lane_of(row.axes);
    if (lane == time_.by_axes.size()) time_.by_axes.push_back({row.axes, 0, 0, 0});
    under_way_[{members[0].number, odd_}].push_back(
        lanes_.start(row.seconds, static_cast<int>(lane) + 1, first));
    time_.collectives.push_back(std::move(row));
  }

  const Costs& costs_;
  const bool shorten_;
  StreamSimulator lanes_;
  FunctionTime skipped_;  ///< of extrapolated iterations outside of shares
  FunctionTime moved_;    ///< from the other figures to the bubble
  std::map<const Step*, Share>* shares_ = nullptr;  ///< of the loop over turns that is played
  Share* share_ = nullptr;                          ///< that which is played
  std::map<std::pair<int, bool>, std::deque<int>>
      under_way_;  ///< (bucket number, iteration is odd) -> transfers, in order
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
