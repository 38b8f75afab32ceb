#include "runtime/executor.h"

#include <algorithm>

#include "base/fail.h"
#include "runtime/step_binder.h"

namespace tessera {

namespace {

std::vector<int> coordinates_of(const Program& program, int rank) {
  std::vector<int> result(program.axis_sizes.size());
  for (size_t a = result.size(); a-- > 0;) {
    result[a] = rank % program.axis_sizes[a];
    rank /= program.axis_sizes[a];
  }
  return result;
}

std::vector<std::vector<BoundStep>> bind_all(StepBinder binder, const Program& program) {
  std::vector<std::vector<BoundStep>> functions;
  for (const Function& f : program.functions) functions.push_back(binder.bind(f.steps));
  return functions;
}

}  // namespace

Executor::Executor(const Program& program, std::unique_ptr<Communicator> world,
                   const int64_t* scalars, const ExecutorOptions& options,
                   std::unique_ptr<Device> device)
    : world_(std::move(world)),
      device_(device ? std::move(device)
                     : make_cpu_device(*world_, options.threads, options.least_part_ns)),
      given_scalars_(scalars),
      skip_non_finite_(options.skip_non_finite),
      rank_{program, *world_, *device_, coordinates_of(program, world_->rank()),
            std::vector<int64_t>(scalars, scalars + program.scalars.size())},
      memory_(rank_, options.lent),
      collectives_(rank_, memory_, options.profile),
      faults_(rank_),
      recorder_(*device_, options.record),
      steps_(rank_, collectives_, faults_, recorder_, options.profile),
      functions_(bind_all({rank_, memory_, collectives_, faults_}, program)),
      regions_(rank_, steps_, functions_) {}

std::pair<double, int64_t> Executor::time_of(int function, int step) const {
  const BoundStep& bound = functions_[function][step];
  return {bound.seconds, bound.runs};
}

std::string Executor::why_waits(int function) const {
  return tessera::why_waits(*device_, functions_[function]);
}

/// Works for the device; if it fails, peers get the message of this rank.
template <class Work>
void Executor::report(const Work& work) {
  try {
    const DeviceScope scope(*device_);
    work();
  } catch (const Error& e) {
    world_->fail(e.what());
    throw;
  }
}

void Executor::begin() {
  faults_.clear();
  skip_ = {};
  collectives_.reset_waited();
  std::copy_n(given_scalars_, rank_.scalars.size(), rank_.scalars.begin());
  device_->begin(rank_.scalars.data(), rank_.scalars.size());
}

void Executor::run(int function, const std::vector<int>& guards,
                   const std::function<void()>& before_stores) {
  std::vector<BoundStep>& steps = functions_[function];
  const size_t stores = first_store(rank_.program.functions[function]);
  auto run_part = [&](size_t first, size_t last) {
    regions_.run(function, first, last);
    if (device_->may_fault()) faults_.collect();
  };
  report([&] {
    begin();
    run_part(0, stores);
    if (before_stores) before_stores();
    for (int port : guards) {
      const Port& guard = rank_.program.ports[port];
      if (is_finite(rank_, memory_, guard.view)) continue;
      NonFiniteSearch search(rank_, memory_, !skip_non_finite_);
      steps_.run(steps, 0, stores, &search);
      skip_ = {true, search.position(), search.message()};
      if (skip_non_finite_) return;
      fail(ErrorKind::usage, "'{}' is not finite, but no single result is; nothing was stored",
           guard.name);
    }
    if (stores < steps.size()) run_part(stores, steps.size());
    if (recorder_) recorder_.flush();
  });
}

void Executor::enqueue(int function) {
  const size_t stores = first_store(rank_.program.functions[function]);
  report([&] {
    begin();
    regions_.run(function, 0, stores);
    regions_.run(function, stores, functions_[function].size());
  });
}

void Executor::settle() {
  report([&] { faults_.collect(); });
}

}  // namespace tessera
