#include <algorithm>
#include <map>

#include "plan/cost.h"
#include "plan/lanes.h"

namespace tessera {

namespace {

void add_steps(const Function& function, std::vector<const Step*>& steps) {
  for (const Step& step : function.steps) {
    steps.push_back(&step);
    for (const Function& body : step.body) add_steps(body, steps);
  }
}

/// Of the bodies of a loop, and of what loops in them hold.
int steps_inside(const Step& loop) {
  std::vector<const Step*> steps;
  for (const Function& body : loop.body) add_steps(body, steps);
  return static_cast<int>(steps.size());
}

class Player {
 public:
  explicit Player(const Costs& costs) : costs_(costs), lanes_(costs.machine().overlap) {}

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
    if (spans) {
      for (const Lanes::Span& span : lanes_.spans())
        time_.spans.push_back({span.id, span.lane, span.begin, span.seconds});
    }
    return std::move(time_);
  }

 private:
  /// From 1; a set of axes that was not met yet gets the next one.
  int lane_of(const std::vector<int>& axes) {
    auto it = std::find_if(time_.by_axes.begin(), time_.by_axes.end(),
                           [&](const AxisTime& a) { return a.axes == axes; });
    if (it == time_.by_axes.end()) it = time_.by_axes.insert(it, {axes, 0, 0, 0});
    return static_cast<int>(it - time_.by_axes.begin()) + 1;
  }

  /// `number`: of the first step, in all_steps().
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
        lanes_.compute(costs_.compute(step), mine);
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

  /// In the order in which the executor runs it: some exchanges start a trip early, some end late.
  void play_loop(const Step& loop, int number) {
    const Function& body = loop.body[0];
    const std::span<const Step> steps(body.steps);
    const size_t stores = static_cast<size_t>(body.first_update);
    const size_t early = static_cast<size_t>(body.early);
    const size_t late = stores - static_cast<size_t>(body.late);
    const bool outside = odd_;
    auto run = [&](int64_t trip, size_t first, size_t last) {
      int skipped = 0;
      for (const Step& step : steps.first(first)) skipped += 1 + steps_inside(step);
      odd_ = trip % 2 != 0;
      play(steps.subspan(first, last - first), number + skipped);
    };
    run(0, 0, early);
    for (int64_t trip = 0; trip < loop.loop.trips; ++trip) {
      if (trip + 1 < loop.loop.trips) run(trip + 1, 0, early);
      run(trip, early, late);
      if (trip > 0) run(trip - 1, late, stores);
      run(trip, stores, steps.size());
    }
    run(loop.loop.trips - 1, late, stores);
    odd_ = outside;
  }

  void start(int first, std::span<const Step> members) {
    CollectiveTime row{first, static_cast<int>(members.size()), members[0].axes,
                       0,     costs_.exchange(members),         0};
    for (const Step& member : members) row.bytes += member.bytes;
    under_way_[{members[0].number, odd_}] = lanes_.start(row.seconds, lane_of(row.axes), first);
    time_.collectives.push_back(std::move(row));
  }

  const Costs& costs_;
  Lanes lanes_;
  std::map<std::pair<int, bool>, int> under_way_;  ///< transfer by exchange, of an odd trip or not
  bool odd_ = false;
  FunctionTime time_;
};

}  // namespace

std::vector<const Step*> all_steps(const Function& function) {
  std::vector<const Step*> steps;
  add_steps(function, steps);
  return steps;
}

FunctionTime time_of(const Function& function, const Costs& costs, bool spans) {
  Player player(costs);
  player.play(function);
  return player.finish(spans);
}

}  // namespace tessera
