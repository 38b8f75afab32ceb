#include "runtime/step_runner.h"

#include <algorithm>

#include "base/clock.h"
#include "base/fail.h"
#include "base/thrown.h"
#include "runtime/profiler_range.h"
#include "runtime/step_binder.h"

namespace tessera {

void StepRunner::run(std::vector<BoundStep>& steps, size_t first, size_t last,
                     NonFiniteSearch* search) {
  for (size_t s = first; s < last; ++s) {
    BoundStep& bound = steps[s];
    if (asks_at_ != kNever) ask();
    // A wait has no source of its own: it is for the first collective of its bucket.
    const bool waits = bound.step->kind == StepKind::wait;
    if (rank_.activity != nullptr)
      rank_.activity->begin(waits ? bound.bucket->steps[0] : *bound.step,
                            bound.step->kind != StepKind::compute || !rank_.device.is_host());
    const double start = profile_ ? host_seconds() : 0;
    if (recorder_) {
      recorder_.run(steps, s, [&] { run_step(bound, search); });
    } else {
      run_step(bound, search);
    }
    if (profile_) {
      if (!rank_.device.is_host()) faults_.collect();
      bound.seconds += host_seconds() - start;
      ++bound.runs;
    }
    faults_.note(*bound.step);
    if (search != nullptr) examine(bound, *search);
  }
}

void StepRunner::ask() {
  const double now = host_seconds();
  if (now < asks_at_) return;
  asks_at_ = now + kBetween;
  if (interrupted_()) throw Interrupted();
}

void StepRunner::examine(const BoundStep& bound, NonFiniteSearch& search) {
  if (bound.kernel) search.examine(*bound.step);
  if (bound.step->kind != StepKind::wait) return;
  for (const Step& step : bound.bucket->steps) search.examine(step);
}

void StepRunner::run_step(BoundStep& bound, NonFiniteSearch* search) {
  const ProfilerRange range(rank_.device, bound.label);
  if (bound.loop) return run_loop(bound, search);
  try {
    switch (bound.step->kind) {
      case StepKind::compute:
        bound.kernel->run();
        collectives_.advance_all();
        break;
      case StepKind::collective:  // the first of a bucket starts all of it
        if (bound.bucket != nullptr) collectives_.start(*bound.bucket);
        break;
      case StepKind::wait:
        collectives_.wait(*bound.bucket);
        break;
    }
  } catch (const Error&) {
    throw;
  } catch (...) {
    fail(ErrorKind::internal, "[{}] {} ({})", bound.step->origin.name, thrown_text(),
         bound.step->origin.source);
  }
}

/// The iterations [first, last) that this rank runs now.
std::pair<int64_t, int64_t> StepRunner::window(const LoopStep& loop) const {
  const int64_t origin = loop.first.eval(rank_.coordinates, nullptr);
  const auto [begin, end] = counters_of(loop, rank_.coordinates, rank_.scalars.data());
  if (!loop.reverse) return {begin - origin, end - origin};
  return {origin + loop.iterations - end, origin + loop.iterations - begin};
}

namespace {

/// How many results of a function a search examines.
int64_t results_of(const Function& function) {
  int64_t results = 0;
  for (const Step& step : function.steps) {
    if (!step.body.empty()) {
      results += step.loop.iterations * results_of(step.body[0]);
    } else {
      results += step.kind != StepKind::wait;
    }
  }
  return results;
}

}  // namespace

/// Collectives of an iteration end in the iteration or the next one, so the ranks stay together
/// however a condition falls: it is the same on all of them, and where there is one no iteration
/// overlaps another.
void StepRunner::run_loop(BoundStep& bound, NonFiniteSearch* search) {
  const LoopStep& loop = bound.step->loop;
  const Function& body = bound.step->body[0];
  const auto count = static_cast<size_t>(loop.iterations);
  const auto [begin, end] = window(loop);
  const auto early = static_cast<size_t>(body.early),
             stores = static_cast<size_t>(body.first_update);
  const size_t late = stores - static_cast<size_t>(body.late);
  auto& variants = bound.loop->iterations;
  auto run_part = [&](size_t iteration, size_t first, size_t last) {
    if (first == last) return;
    const auto counter = static_cast<size_t>(loop.counter);
    rank_.scalars[counter] =
        counter_of(*bound.step, static_cast<int64_t>(iteration), rank_.coordinates);
    rank_.device.set_scalar(counter, rank_.scalars[counter]);
    run(variants[iteration % variants.size()], first, last, search);
  };
  const auto skip = [&](int64_t iterations) {
    if (search != nullptr && iterations > 0) search->skip(iterations * results_of(body));
  };
  skip(begin);
  run_part(0, 0, early);
  for (auto iteration = static_cast<size_t>(begin); iteration < static_cast<size_t>(end);
       ++iteration) {
    if (const void* condition = bound.loop->conditions[iteration % variants.size()]) {
      bool runs = false;
      rank_.device.read(&runs, condition, sizeof(runs));
      if (!runs && variants.size() == 1) return;  // nothing will change it
      if (!runs) continue;
    }
    if (iteration + 1 < count) run_part(iteration + 1, 0, early);
    run_part(iteration, early, late);
    if (iteration > 0) run_part(iteration - 1, late, stores);
    run_part(iteration, stores, body.steps.size());
  }
  run_part(count - 1, late, stores);
  skip(loop.iterations - end);
}

}  // namespace tessera
