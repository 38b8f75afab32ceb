// Loops. Addresses are fixed when a step is bound: a body whose views follow the counter is bound
// once an iteration, any other once; or twice, where buffers alternate between iterations.
#include <algorithm>
#include <vector>

#include "runtime/executor.h"

namespace tessera {

namespace {

int64_t index_of_iteration(const LoopStep& loop, int64_t iteration) {
  return loop.reverse ? loop.iterations - 1 - iteration : iteration;
}

/// True if the iterations of a loop touch different addresses.
bool moves(const Step& step) {
  bool any = false;
  visit_views(step, [&](const View& v) { any = any || v.shift.scalar == step.loop.counter; });
  return any;
}

}  // namespace

/// The buffers of a body that alternate are those of an even or odd iteration from here on.
void Executor::set_parity(const Function& body, int64_t iteration) {
  for (const Step& step : body.steps) {
    for (const auto* views : {&step.in, &step.out}) {
      for (const View& v : *views) {
        const auto b = static_cast<size_t>(v.buffer);
        if (program_.buffers[b].alternates &&
            !std::binary_search(body.outer.begin(), body.outer.end(), v.buffer))
          odd_[b] = iteration % 2 != 0;
      }
    }
  }
}

std::unique_ptr<Executor::BoundLoop> Executor::bind_loop(const Step& step) {
  auto bound = std::make_unique<BoundLoop>();
  const Function& body = step.body[0];
  const int64_t few = body.early + body.late > 0 ? 2 : 1;
  const int64_t variants = moves(step) ? step.loop.iterations : few;
  for (int64_t iteration = 0; iteration < variants; ++iteration) {
    scalars_[static_cast<size_t>(step.loop.counter)] = index_of_iteration(step.loop, iteration);
    set_parity(body, iteration);
    bound->conditions.push_back(step.loop.condition.empty() ? nullptr
                                                            : address(step.loop.condition[0]));
    bound->iterations.push_back(bind_steps(body.steps));
  }
  return bound;
}

/// Collectives of an iteration end in the iteration or the next one, so the ranks stay together
/// however a condition falls: it is the same on all of them, and where there is one no iteration
/// overlaps another.
void Executor::run_loop(BoundStep& bound, bool examine) {
  const LoopStep& loop = bound.step->loop;
  const Function& body = bound.step->body[0];
  const auto count = static_cast<size_t>(loop.iterations);
  const auto early = static_cast<size_t>(body.early),
             stores = static_cast<size_t>(body.first_update);
  const size_t late = stores - static_cast<size_t>(body.late);
  auto run = [&](size_t iteration, size_t first, size_t last) {
    if (first == last) return;
    scalars_[static_cast<size_t>(loop.counter)] =
        index_of_iteration(loop, static_cast<int64_t>(iteration));
    if (!device_->is_host()) device_->begin(scalars_.data(), scalars_.size());
    run_steps(bound.loop->iterations[iteration % bound.loop->iterations.size()], first, last,
              examine);
  };
  run(0, 0, early);
  for (size_t iteration = 0; iteration < count; ++iteration) {
    if (const void* condition = bound.loop->conditions[iteration % bound.loop->iterations.size()]) {
      bool runs = false;
      device_->read(&runs, condition, sizeof(runs));
      if (!runs && bound.loop->iterations.size() == 1) return;  // nothing will change it
      if (!runs) continue;
    }
    if (iteration + 1 < count) run(iteration + 1, 0, early);
    run(iteration, early, late);
    if (iteration > 0) run(iteration - 1, late, stores);
    run(iteration, stores, body.steps.size());
  }
  run(count - 1, late, stores);
}

}  // namespace tessera
