// Loops. Addresses are fixed when a step is bound: a body whose views follow the counter is bound
// once a trip, any other once; or twice, where buffers alternate between trips.
#include <algorithm>
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

/// The buffers of a body that alternate are those of an even or odd trip from here on.
void Executor::set_parity(const Function& body, int64_t trip) {
  for (const Step& step : body.steps) {
    for (const auto* views : {&step.in, &step.out}) {
      for (const View& v : *views) {
        const auto b = static_cast<size_t>(v.buffer);
        if (program_.buffers[b].alternates &&
            !std::binary_search(body.outer.begin(), body.outer.end(), v.buffer))
          odd_[b] = trip % 2 != 0;
      }
    }
  }
}

std::unique_ptr<Executor::BoundLoop> Executor::bind_loop(const Step& step) {
  auto bound = std::make_unique<BoundLoop>();
  const Function& body = step.body[0];
  const int64_t few = body.early + body.late > 0 ? 2 : 1;
  const int64_t variants = moves(step) ? step.loop.trips : few;
  for (int64_t trip = 0; trip < variants; ++trip) {
    scalars_[static_cast<size_t>(step.loop.counter)] = index_of_trip(step.loop, trip);
    set_parity(body, trip);
    bound->conditions.push_back(step.loop.condition.empty() ? nullptr
                                                            : address(step.loop.condition[0]));
    bound->trips.push_back(bind_steps(body.steps));
  }
  return bound;
}

/// Collectives of a trip end in the trip or the next one, so the ranks stay together however a
/// condition falls: it is the same on all of them, and where there is one no trip overlaps another.
void Executor::run_loop(BoundStep& bound, bool examine) {
  const LoopStep& loop = bound.step->loop;
  const Function& body = bound.step->body[0];
  const auto count = static_cast<size_t>(loop.trips);
  const auto early = static_cast<size_t>(body.early),
             stores = static_cast<size_t>(body.first_update);
  const size_t late = stores - static_cast<size_t>(body.late);
  auto run = [&](size_t trip, size_t first, size_t last) {
    if (first == last) return;
    scalars_[static_cast<size_t>(loop.counter)] = index_of_trip(loop, static_cast<int64_t>(trip));
    if (!device_->is_host()) device_->begin(scalars_.data(), scalars_.size());
    run_steps(bound.loop->trips[trip % bound.loop->trips.size()], first, last, examine);
  };
  run(0, 0, early);
  for (size_t trip = 0; trip < count; ++trip) {
    if (const void* condition = bound.loop->conditions[trip % bound.loop->trips.size()]) {
      bool runs = false;
      device_->read(&runs, condition, sizeof(runs));
      if (!runs && bound.loop->trips.size() == 1) return;  // nothing will change it
      if (!runs) continue;
    }
    if (trip + 1 < count) run(trip + 1, 0, early);
    run(trip, early, late);
    if (trip > 0) run(trip - 1, late, stores);
    run(trip, stores, body.steps.size());
  }
  run(count - 1, late, stores);
}

}  // namespace tessera
