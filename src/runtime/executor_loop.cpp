// Loops. Addresses are fixed when a step is bound: a body whose views follow the counter is bound
// once a trip, any other once.
#include <vector>

#include "runtime/executor.h"

namespace tessera {

namespace {

int64_t index_of_trip(const LoopStep& loop, int64_t trip) {
  return loop.reverse ? loop.trips - 1 - trip : trip;
}

/// True if the trips of a loop touch different addresses.
bool moves(const Step& step) {
  bool any = false;
  visit_views(step, [&](const View& v) { any = any || v.shift.scalar == step.loop.counter; });
  return any;
}

}  // namespace

std::unique_ptr<Executor::BoundLoop> Executor::bind_loop(const Step& step) {
  auto bound = std::make_unique<BoundLoop>();
  const int64_t variants = moves(step) ? step.loop.trips : 1;
  for (int64_t trip = 0; trip < variants; ++trip) {
    scalars_[static_cast<size_t>(step.loop.counter)] = index_of_trip(step.loop, trip);
    bound->conditions.push_back(step.loop.condition.empty() ? nullptr
                                                            : address(step.loop.condition[0]));
    bound->trips.push_back(bind_steps(step.body[0].steps));
  }
  return bound;
}

/// Collectives of a trip end in the trip, so the ranks stay together however a condition falls: it
/// is the same on all of them.
void Executor::run_loop(BoundStep& bound, bool examine) {
  const LoopStep& loop = bound.step->loop;
  for (int64_t trip = 0; trip < loop.trips; ++trip) {
    const auto variant = static_cast<size_t>(trip) % bound.loop->trips.size();
    if (const void* condition = bound.loop->conditions[variant]) {
      bool runs = false;
      device_->read(&runs, condition, sizeof(runs));
      if (!runs && bound.loop->trips.size() == 1) break;  // nothing will change it
      if (!runs) continue;
    }
    scalars_[static_cast<size_t>(loop.counter)] = index_of_trip(loop, trip);
    if (!device_->is_host()) device_->begin(scalars_.data(), scalars_.size());
    std::vector<BoundStep>& steps = bound.loop->trips[variant];
    run_steps(steps, 0, steps.size(), examine);
  }
}

}  // namespace tessera
