// Runs that leave the device behind: nothing here waits for it but settle().
#include <algorithm>

#include "base/fail.h"
#include "runtime/executor.h"

namespace tessera {

std::string Executor::why_waits(const std::vector<BoundStep>& steps) const {
  for (const BoundStep& bound : steps) {
    std::string why;
    if (bound.loop) {
      const auto& conditions = bound.loop->conditions;
      if (std::any_of(conditions.begin(), conditions.end(), [](const void* c) { return c; }))
        why = "the condition of its loop is read by the host";
      for (const auto& iteration : bound.loop->iterations) {
        if (why.empty()) why = why_waits(iteration);
        if (!why.empty()) break;
      }
      if (why.starts_with("[")) return why;
    } else if (bound.kernel) {
      why = device_->why_waits(*bound.kernel);
    } else if (bound.operation) {
      why = device_->why_waits(*bound.operation->operation);
    }
    if (!why.empty())
      return fmt::format("[{}] {} ({})", bound.step->origin.name, why, bound.step->origin.source);
  }
  return "";
}

std::string Executor::why_waits(int function) const { return why_waits(functions_[function]); }

void Executor::enqueue(int function) {
  const size_t steps = functions_[function].size();
  const size_t stores = program_.functions[function].updates
                            ? static_cast<size_t>(program_.functions[function].first_update)
                            : steps;
  try {
    const DeviceScope scope(*device_);
    fault_ = {};
    skip_ = {};
    waited_ = 0;
    std::copy_n(given_scalars_, program_.scalars.size(), scalars_.begin());
    device_->begin(scalars_.data(), scalars_.size());
    run_regions(function, 0, stores);
    if (stores < steps) run_regions(function, stores, steps);
  } catch (const Error& e) {
    world_->fail(e.what());
    throw;
  }
}

void Executor::settle() {
  try {
    const DeviceScope scope(*device_);
    throw_faults();
  } catch (const Error& e) {
    world_->fail(e.what());
    throw;
  }
}

}  // namespace tessera
