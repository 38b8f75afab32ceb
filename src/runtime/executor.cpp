#include "runtime/executor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "base/fail.h"
#include "program/buffer_room.h"

namespace tessera {

namespace {

/// A range that a profiler shows, of the thread; none without a device.
class Range {
 public:
  Range(Device* device, const std::string& label) : device_(device) {
    if (device_ != nullptr) device_->push_range(label.c_str());
  }
  ~Range() {
    if (device_ != nullptr) device_->pop_range();
  }
  Range(const Range&) = delete;

 private:
  Device* device_;
};

std::vector<int> coordinates_of(const Program& program, int rank) {
  std::vector<int> result(program.axis_sizes.size());
  for (size_t a = result.size(); a-- > 0;) {
    result[a] = rank % program.axis_sizes[a];
    rank /= program.axis_sizes[a];
  }
  return result;
}

}  // namespace

Executor::Executor(const Program& program, std::unique_ptr<Communicator> world,
                   const int64_t* scalars, const ExecutorOptions& options,
                   std::unique_ptr<Device> device)
    : program_(program),
      world_(std::move(world)),
      given_scalars_(scalars),
      scalars_(scalars, scalars + program.scalars.size()),
      odd_(program.buffers.size(), 0),
      options_(options),
      device_(device ? std::move(device)
                     : make_cpu_device(*world_, options.threads, options.least_part_ns)) {
  coordinates_ = coordinates_of(program, world_->rank());
  shows_ranges_ = device_->shows_ranges();
  device_->expect(
      {{"persistent", program.persistent_bytes}, {"transient", program.transient_bytes}});
  persistent_ = static_cast<std::byte*>(device_->allocate(program.persistent_bytes, "persistent"));
  transient_ = static_cast<std::byte*>(device_->allocate(program.transient_bytes, "transient"));
  if (program.offloaded_bytes > 0)
    offloaded_ = static_cast<std::byte*>(device_->allocate_on_host(program.offloaded_bytes));
  for (const Function& f : program.functions) functions_.push_back(bind_steps(f.steps));
  regions_.resize(program.functions.size());
  if (!device_->is_host()) find_captures();
}

Executor::~Executor() = default;

std::vector<Executor::BoundStep> Executor::bind_steps(const std::vector<Step>& steps) {
  std::vector<BoundStep> result;
  std::map<int, Exchange*> open;
  for (auto step = steps.begin(); step != steps.end(); ++step) {
    BoundStep bound;
    bound.step = &*step;
    if (shows_ranges_)
      bound.label =
          fmt::format("{} {} ({})", name_of(*step), step->origin.name, step->origin.source);
    if (!step->body.empty()) {
      bound.loop = bind_loop(*step);
    } else if (step->kind == StepKind::compute) {
      bound.kernel = bind_kernel(*step);
    } else if (step->kind == StepKind::wait) {
      bound.operation = open.at(step->number);
    } else if (open.count(step->number) == 0) {
      const auto end = std::find_if(step, steps.end(), [&](const Step& other) {
        return other.kind != StepKind::collective || other.number != step->number;
      });
      operations_.push_back({bind_collectives({step, end}), &*step});
      if (options_.profile) operations_.back().held.resize(kHeldTimes);
      bound.operation = open[step->number] = &operations_.back();
    }
    result.push_back(std::move(bound));
  }
  return result;
}

void Executor::find_captures() {
  for (size_t f = 0; f < functions_.size(); ++f) {
    const Function& function = program_.functions[f];
    std::vector<std::string> why;
    for (const BoundStep& bound : functions_[f]) {
      why.push_back(bound.loop        ? "a loop runs iteration by iteration"
                    : bound.kernel    ? device_->why_not_captured(*bound.kernel)
                    : bound.operation ? device_->why_not_captured(*bound.operation->operation)
                                      : "");
    }
    const size_t stores =
        function.updates ? static_cast<size_t>(function.first_update) : function.steps.size();
    regions_[f] = find_regions(function.steps, std::move(why), stores);
    replays_.emplace_back(regions_[f].size());
  }
}

void* Executor::address(const View& view) const {
  const Buffer& buffer = program_.buffers[view.buffer];
  std::byte* base = buffer.arena == ArenaKind::persistent  ? persistent_
                    : buffer.arena == ArenaKind::offloaded ? offloaded_
                                                           : transient_;
  const int64_t other = odd_[static_cast<size_t>(view.buffer)] ? room_of(buffer) : 0;
  const auto placed = options_.placed.find(view.buffer);
  std::byte* first = placed == options_.placed.end() ? base + buffer.offset + other
                                                     : static_cast<std::byte*>(placed->second);
  return first +
         (view.offset + view.shift.eval(coordinates_, scalars_.data())) * size_of(view.dtype);
}

TensorArg Executor::bind_view(const View& view) const {
  return {address(view), view.dtype, view.sizes, view.strides};
}

std::unique_ptr<Kernel> Executor::bind_kernel(const Step& step) {
  KernelArgs args;
  args.step = &step;
  for (const View& v : step.in) args.in.push_back(bind_view(v));
  for (const View& v : step.out) args.out.push_back(bind_view(v));
  args.coordinates = coordinates_;
  args.scalars = scalars_.data();
  args.workspace =
      step.workspace < 0 ? nullptr : transient_ + program_.buffers[step.workspace].offset;
  args.fault = &fault_;
  bound_.push_back(&step);
  return device_->bind(args);
}

namespace {

/// The first element that is not finite, or -1.
int64_t find_non_finite(const void* data, DType dtype, int64_t elements) {
  for (int64_t i = 0; i < elements; ++i) {
    double x = 0;
    if (dtype == DType::float32) x = static_cast<const float*>(data)[i];
    if (dtype == DType::float64) x = static_cast<const double*>(data)[i];
    if (is_narrow(dtype)) {  // all exponent bits set
      const int exponent = dtype == DType::float16 ? 0x7C00 : 0x7F80;
      x = (static_cast<const uint16_t*>(data)[i] & exponent) == exponent
              ? std::numeric_limits<double>::infinity()
              : 0;
    }
    if (!std::isfinite(x)) return i;
  }
  return -1;
}

}  // namespace

/// "", or which element of the step's results is not finite.
std::string Executor::examine_result(const Step& step) const {
  for (const Instr& instr : step.pointwise.code) {
    if (instr.code == Code::mask && !std::isfinite(instr.imm))
      return "";  // padding of a maximum, a minimum or an order
  }
  for (const View& view : step.out) {
    if (!is_floating(view.dtype)) continue;
    View once = view;  // a number for each row is stored once
    for (size_t d = 0; d < once.sizes.size(); ++d) {
      if (once.strides[d] == 0) once.sizes[d] = 1;
    }
    if (!once.is_contiguous()) continue;
    std::vector<std::byte> held(static_cast<size_t>(once.elements() * size_of(view.dtype)));
    device_->read(held.data(), address(view), static_cast<int64_t>(held.size()));
    const int64_t at = find_non_finite(held.data(), view.dtype, once.elements());
    if (at < 0) continue;
    return fmt::format(
        "[{}] element {} of its slice on rank {} is the first that is not finite ({}); nothing was "
        "stored",
        step.origin.name, at, world_->rank(), step.origin.source);
  }
  return "";
}

void Executor::run_step(BoundStep& bound, bool examine) {
  if (bound.loop) return run_loop(bound, examine);
  try {
    switch (bound.step->kind) {
      case StepKind::compute:
        bound.kernel->run();
        advance_all();
        break;
      case StepKind::collective:
        if (bound.operation == nullptr) break;  // started with the first of its number
        start(*bound.operation);
        break;
      case StepKind::wait:
        wait_for(*bound.operation);
        break;
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    tessera::fail(ErrorKind::internal, "[{}] {} ({})", bound.step->origin.name, e.what(),
                  bound.step->origin.source);
  }
}

/// With its range, if a profiler shows it.
void Executor::run_shown(BoundStep& bound, bool examine) {
  const Range range(shows_ranges_ ? device_.get() : nullptr, bound.label);
  run_step(bound, examine);
}

void Executor::run_steps(std::vector<BoundStep>& steps, size_t first, size_t last, bool examine) {
  using Clock = std::chrono::steady_clock;
  for (size_t s = first; s < last; ++s) {
    BoundStep& bound = steps[s];
    const Clock::time_point start = options_.profile ? Clock::now() : Clock::time_point();
    options_.record ? record_step(steps, s, examine) : run_shown(bound, examine);
    if (options_.profile) {
      if (!device_->is_host()) throw_faults();
      bound.seconds += std::chrono::duration<double>(Clock::now() - start).count();
      ++bound.runs;
    }
    if (fault_.set) throw_fault(*bound.step);
    if (!examine || !bound.kernel) continue;
    ++examined_;
    if (!skip_.message.empty()) continue;
    skip_.message = examine_result(*bound.step);
    if (skip_.message.empty()) continue;
    skip_.step = examined_;
    if (!options_.skip_non_finite) tessera::fail(ErrorKind::usage, "{}", skip_.message);
  }
}

/// Regions lie within [first, last) or outside. The first run of a region goes step by step, as
/// kernels may have to be loaded; the second one records it.
void Executor::run_regions(int function, size_t first, size_t last) {
  std::vector<BoundStep>& steps = functions_[function];
  const std::vector<StepRange>& regions = regions_[function];
  for (size_t r = 0; r < regions.size(); ++r) {
    const StepRange& region = regions[r];
    if (region.first < first || region.last > last) continue;
    Replay& replay = replays_[function][r];
    if (region.captured && !options_.profile && !options_.record && ++replay.runs >= 2) {
      if (!replay.launch) {
        if (shows_ranges_)
          replay.label = fmt::format("{} steps from {}", region.last - region.first,
                                     steps[region.first].label);
        replay.launch =
            device_->capture([&] { run_steps(steps, region.first, region.last, false); });
      }
      if (replay.launch) {
        const Range range(shows_ranges_ ? device_.get() : nullptr, replay.label);
        replay.launch();
        continue;
      }
    }
    run_steps(steps, region.first, region.last, false);
  }
}

/// A collective is one span, in the lane of transfers, from its start to the end of its wait, where
/// the compute lane waits for it in a span of its own.
void Executor::record_step(std::vector<BoundStep>& steps, size_t s, bool examine) {
  BoundStep& bound = steps[s];
  if (bound.step->kind == StepKind::collective) {
    if (bound.operation != nullptr) bound.mark = device_->mark(true);
    return run_step(bound, examine);
  }
  const Step* shown = bound.step;
  const int begin = device_->mark(false);
  run_step(bound, examine);
  for (BoundStep& start : steps) {
    if (bound.step->kind != StepKind::wait || start.operation != bound.operation ||
        &start == &bound)
      continue;
    shown = start.step;
    marked_.push_back({shown, true, start.mark, device_->mark(true)});
  }
  marked_.push_back({shown, false, begin, device_->mark(false)});
}

void Executor::give_spans() {
  const std::vector<double> times = device_->marks();
  for (const Marked& m : marked_) {
    const double begin = times.at(static_cast<size_t>(m.begin));
    options_.record({m.step, m.is_transfer, begin, times.at(static_cast<size_t>(m.end)) - begin});
  }
  marked_.clear();
}

/// What kernels of a device found since the last time.
void Executor::throw_faults() {
  const int64_t number = device_->settle(fault_);
  if (!fault_.set) return;
  throw_fault(*bound_.at(static_cast<size_t>(number)));
}

void Executor::throw_fault(const Step& step) const {
  const std::string part =
      world_->size() > 1 ? fmt::format(" (in the part of rank {})", world_->rank()) : "";
  tessera::fail(ErrorKind::usage, "[{}] {}{} ({})", step.origin.name, fault_.message, part,
                step.origin.source);
}

bool Executor::is_finite(const Port& port) const {
  uint64_t held = 0;
  device_->read(&held, address(port.view), size_of(port.view.dtype));
  return find_non_finite(&held, port.view.dtype, 1) < 0;
}

std::pair<double, int64_t> Executor::time_of(int function, int step) const {
  const BoundStep& bound = functions_[function][step];
  return {bound.seconds, bound.runs};
}

void Executor::run(int function, const std::vector<int>& guards,
                   const std::function<void()>& before_stores) {
  std::vector<BoundStep>& steps = functions_[function];
  const size_t stores = program_.functions[function].updates
                            ? program_.functions[function].first_update
                            : steps.size();
  const bool host = device_->is_host();
  auto part = [&](size_t first, size_t last) {
    host ? run_steps(steps, first, last, false) : run_regions(function, first, last);
    if (!host && device_->may_fault()) throw_faults();
  };
  try {
    const DeviceScope scope(*device_);
    fault_ = {};
    skip_ = {};
    waited_ = 0;
    examined_ = 0;
    std::copy_n(given_scalars_, scalars_.size(), scalars_.begin());
    device_->begin(scalars_.data(), scalars_.size());
    part(0, stores);
    if (before_stores) before_stores();
    for (int port : guards) {
      if (is_finite(program_.ports[port])) continue;
      skip_.skipped = true;
      run_steps(steps, 0, stores, true);
      if (options_.skip_non_finite) return;
      fail(ErrorKind::usage, "'{}' is not finite, but no single result is; nothing was stored",
           program_.ports[port].name);
    }
    if (stores < steps.size()) part(stores, steps.size());
    if (options_.record) give_spans();
  } catch (const Error& e) {
    world_->fail(e.what());
    throw;
  }
}

}  // namespace tessera
