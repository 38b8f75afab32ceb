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

/// Whether one of the steps, or of their bodies, has a kernel that may report a fault.
bool may_fault(std::span<const Step> steps) {
  return std::any_of(steps.begin(), steps.end(), [](const Step& step) {
    const auto* const indexed = step.find<IndexedSpec>();
    const auto* const attention = step.find<AttentionSpec>();
    return (indexed != nullptr && indexed->out_of_range == OutOfRange::error) ||
           (attention != nullptr && attention->segments) ||
           std::any_of(step.body.begin(), step.body.end(),
                       [](const Function& body) { return may_fault(body.steps); });
  });
}

std::unique_ptr<Device> device_on_host(Communicator& world, const ExecutorOptions& options) {
  auto device = make_cpu_device(world, options.threads, options.least_part_ns);
  if (!options.pace) return device;
  return std::make_unique<PacedDevice>(std::move(device), options.pace);
}

}  // namespace

Executor::Executor(const Program& program, std::unique_ptr<Communicator> world,
                   const int64_t* scalars, const ExecutorOptions& options,
                   std::unique_ptr<Device> device)
    : world_(std::move(world)),
      device_(device ? std::move(device) : device_on_host(*world_, options)),
      given_scalars_(scalars),
      rank_{program,
            *world_,
            *device_,
            coordinates_of(program, world_->rank()),
            std::vector<int64_t>(scalars, scalars + program.scalars.size()),
            options.activity},
      memory_(rank_, options.lent),
      collectives_(rank_, memory_, options.profile),
      faults_(rank_),
      sources_(options.sources),
      recorder_(*device_, options.record),
      steps_(rank_, collectives_, faults_, recorder_, options.profile, options.interrupted),
      functions_(bind_all({rank_, memory_, collectives_, faults_}, program)),
      regions_(rank_, steps_, functions_) {
  for (const Function& f : program.functions) {
    const auto stores = f.steps.begin() + static_cast<std::ptrdiff_t>(first_store(f));
    may_fault_.push_back(
        {may_fault({f.steps.begin(), stores}), may_fault({stores, f.steps.end()})});
  }
  if (world_->size() == 1) return;
  Collective least;
  least.kind = CollectiveKind::all_reduce;
  least.dtype = DType::int64;
  least.combiner = Combiner::min;
  least.in = &first_fault_.mine;
  least.out = &first_fault_.of_all;
  least.count = 1;
  least.site.text = agreement_.origin.name = "agreeing on faults in data";
  agreement_.kind = StepKind::collective;
  agreement_.collective = least.kind;
  first_fault_.operation = world_->prepare(least);
}

namespace {

void add_times(const std::vector<BoundStep>& steps,
               std::map<const Step*, Executor::StepTotal>& totals) {
  for (const BoundStep& bound : steps) {
    if (bound.runs == 0) continue;
    Executor::StepTotal& total = totals[bound.step];
    total.seconds += bound.seconds;
    total.runs += bound.runs;
    if (!bound.loop) continue;
    for (const std::vector<BoundStep>& iteration : bound.loop->iterations)
      add_times(iteration, totals);
  }
}

}  // namespace

std::map<const Step*, Executor::StepTotal> Executor::times_of(int function) const {
  std::map<const Step*, StepTotal> totals;
  add_times(functions_[static_cast<size_t>(function)], totals);
  return totals;
}

std::string Executor::why_waits(int function) const {
  return tessera::why_waits(*device_, functions_[function]);
}

/// Works for the device; if it fails, peers get the message of this rank.
template <class Work>
void Executor::report(const Work& work) {
  const ActivityScope activity(rank_.activity);
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
  stopped_ = {};
  collectives_.reset_waited();
  std::copy_n(given_scalars_, rank_.scalars.size(), rank_.scalars.begin());
  device_->begin(rank_.scalars.data(), rank_.scalars.size());
}

void Executor::stop(Stopped why) {
  collectives_.finish();
  stopped_ = std::move(why);
}

/// A rank whose kernels found nothing would go on, and wait for one that does not.
bool Executor::stops_for_faults(int function, bool before_stores) {
  const bool own = may_fault_[static_cast<size_t>(function)][before_stores ? 0 : 1];
  if (!own && !enqueued_) return false;
  enqueued_ = false;
  if (device_->may_fault()) faults_.collect();
  FirstFault& first = first_fault_;
  constexpr int64_t kNone = INT64_MAX;
  const int64_t position = faults_.position();
  first.of_all = first.mine =
      position == kNone ? kNone : 2 * position + (faults_.is_of_capacity() ? 0 : 1);
  if (first.operation) {
    if (rank_.activity != nullptr) rank_.activity->begin(agreement_, true);
    first.operation->start();
    first.operation->wait();
  }
  if (first.of_all == kNone) return false;
  // What is stored already cannot be repeated.
  const bool is_of_capacity = before_stores && first.of_all % 2 == 0;
  stop({is_of_capacity ? Stopped::By::capacity : Stopped::By::fault, position, faults_.message(),
        before_stores});
  return true;
}

bool Executor::stops_for_guards(int function, const std::vector<int>& guards) {
  for (int port : guards) {
    if (is_finite(rank_, memory_, rank_.program.ports[port].view)) continue;
    NonFiniteSearch search(rank_, memory_, sources_.get());
    collectives_.finish();
    steps_.run(functions_[function], 0, first_store(rank_.program.functions[function]), &search);
    search.conclude(rank_.program.ports[port].view);
    stop({Stopped::By::guard, search.position(), search.message()});
    return true;
  }
  return false;
}

void Executor::run(int function, const std::vector<int>& guards,
                   const std::function<std::string()>& check) {
  const size_t stores = first_store(rank_.program.functions[function]),
               end = functions_[function].size();
  report([&] {
    begin();
    try {
      const StepRunner::Interruptible asking(steps_);
      regions_.run(function, 0, stores);
    } catch (const StepRunner::Interrupted&) {
      const char* const message = "it was interrupted within a step; nothing was stored";
      if (world_->size() > 1) fail(ErrorKind::usage, "{}", message);
      return stop({Stopped::By::interrupt, 0, message});
    }
    if (stops_for_faults(function, true)) return;
    if (const std::string found = check ? check() : ""; !found.empty())
      return stop({Stopped::By::check, 0, found});
    if (stops_for_guards(function, guards)) return;
    regions_.run(function, stores, end);
    if (stops_for_faults(function, false)) return;
    faults_.collect();  // a run ends when its work does
    if (recorder_) recorder_.flush();
  });
}

void Executor::enqueue(int function) {
  const size_t stores = first_store(rank_.program.functions[function]);
  enqueued_ = true;
  report([&] {
    begin();
    regions_.run(function, 0, stores);
    regions_.run(function, stores, functions_[function].size());
  });
}

void Executor::settle() {
  report([&] {
    enqueued_ = false;
    faults_.collect();
    if (!faults_.message().empty()) fail(ErrorKind::usage, "{}", faults_.message());
  });
}

}  // namespace tessera
