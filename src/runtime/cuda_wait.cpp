// What the CUDA device tells the host, and when: copies back, faults, times, and waits that end.
#include <chrono>
#include <thread>
#include <utility>

#include "base/fail.h"
#include "runtime/cuda_device.h"

namespace tessera {

void CudaDevice::follow_loan() {
  if (!options_.loan.has_stream) return;
  require(!api_.is_capturing(options_.loan.stream),
          "[adopt_cuda] the stream lent to rank {} on {} is being captured, and a Session's step "
          "cannot be part of that: it has graphs of its own; end the capture before the call",
          world_.rank(), name());
  api_.record(lent_, options_.loan.stream);
  api_.wait(compute_, lent_);
}

void CudaDevice::lead_loan() {
  if (!options_.loan.has_stream) return;
  api_.record(led_, compute_);
  api_.wait(options_.loan.stream, led_);
}

void CudaDevice::enter() {
  before_ = api_.use(card_);
  try {
    follow_loan();
  } catch (...) {
    api_.restore(before_);
    throw;
  }
}

void CudaDevice::leave() noexcept {
  try {
    lead_loan();
  } catch (const std::exception&) {  // a card that failed: the next call for it says so
  }
  try {
    api_.restore(before_);
  } catch (const std::exception&) {  // a card that failed: the next call for it says so
  }
}

void CudaDevice::drain(bool failed) noexcept {
  try {
    const UseCard here(api_, card_);
    if (failed) abort_groups();
    finish(compute_);
    finish(transfers_);
  } catch (const std::exception&) {  // it failed: nothing runs there any more
  }
}

void CudaDevice::read(void* host, const void* device, int64_t bytes) {
  const UseCard here(api_, card_);
  follow_loan();
  if (!groups_.empty()) finish(compute_);
  api_.to_host(host, device, bytes, compute_);
  api_.synchronize(compute_);
}

void CudaDevice::finish(CudaStream stream) {
  if (groups_.empty()) return api_.synchronize(stream);
  if (finished_ == nullptr) finished_ = make_event();
  api_.record(finished_, stream);
  await(finished_);
}

void CudaDevice::await(CudaEvent event) {
  const auto start = std::chrono::steady_clock::now();
  while (!api_.passed(event)) {
    for (const auto& [communicator, group] : groups_) {
      const std::string trouble = group == nullptr ? "" : api_.trouble(group);
      if (!trouble.empty()) give_up(trouble);
    }
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
    if (waited.count() > world_.timeout())
      give_up(fmt::format("waited {:.0f} s for collectives with other cards", waited.count()));
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

void CudaDevice::abort_groups() noexcept {
  try {
    release_graphs();
  } catch (const std::exception&) {  // a card that failed
  }
  for (auto& [communicator, group] : groups_) {
    if (group != nullptr) api_.abort(std::exchange(group, nullptr));
  }
}

void CudaDevice::give_up(const std::string& why) {
  abort_groups();
  const auto ended =
      ended_ == nullptr ? size_t{0} : static_cast<size_t>(*static_cast<volatile int64_t*>(ended_));
  tessera::fail(ErrorKind::comm, "rank {} on {}: {}; the last collective that ended is {}",
                world_.rank(), name(), why, ended == 0 ? "none" : places_.at(ended - 1));
}

CudaLaunch CudaDevice::make_report(const CallSite& site) {
  if (ended_ == nullptr) {
    ended_ = static_cast<int64_t*>(pinned(sizeof(int64_t)));
    *ended_ = 0;
  }
  places_.push_back(fmt::format("'{}' (call {})", site.text, site.number));
  CudaLaunch launch;
  launch.kernel = api_.load(
      fmt::format("struct Args {{\n  long long* to;\n  long long number;\n}};\nextern \"C\" "
                  "__global__ void {}(Args a) {{\n  *a.to = a.number;\n}}\n",
                  cuda::kName));
  launch.blocks = launch.threads = 1;
  launch.words = {reinterpret_cast<uint64_t>(ended_), places_.size()};
  return launch;
}

void CudaDevice::write(void* device, const void* host, int64_t bytes) {
  const UseCard here(api_, card_);
  follow_loan();
  staging_->copy(device, host, bytes, compute_);
  lead_loan();
}

int64_t CudaDevice::settle(DataFault& fault) {
  device::Fault found{};
  if (!may_fault_) {
    finish(compute_);
    return -1;
  }
  read(&found, fault_, sizeof(found));
  if (found.step == 0) return -1;
  api_.clear(fault_, sizeof(found), compute_);
  fault.set = true;
  fault.message = fmt::format("index {} at position {} (row-major) is outside [0, {})", found.index,
                              found.position, found.size);
  return static_cast<int64_t>(found.step) - 1;
}

int CudaDevice::mark(bool transfers) {
  if (timers_.empty()) {
    timers_.push_back(api_.make_timer());
    api_.record(timers_[0], compute_);
    finish(compute_);
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    epoch_ = std::chrono::duration<double>(now).count();
  }
  if (++marks_ >= timers_.size()) timers_.push_back(api_.make_timer());
  api_.record(timers_[marks_], transfers ? transfers_ : compute_);
  return static_cast<int>(marks_) - 1;
}

std::vector<double> CudaDevice::marks() {
  finish(compute_);
  finish(transfers_);
  std::vector<double> times;
  for (size_t m = 1; m <= marks_; ++m)
    times.push_back(epoch_ + api_.seconds_between(timers_[0], timers_[m]));
  marks_ = 0;
  return times;
}

std::function<void()> CudaDevice::capture(const std::function<void()>& work) {
  api_.begin_capture(compute_);
  try {
    work();
  } catch (...) {
    try {
      api_.release(api_.end_capture(compute_));
    } catch (const Error&) {  // lanes that were not joined: the first error is the one to report
    }
    throw;
  }
  graphs_.push_back(api_.end_capture(compute_));
  return [this, number = graphs_.size() - 1] {
    check(graphs_[number] != nullptr, "a graph that was released is replayed");
    api_.launch(graphs_[number], compute_);
  };
}

void CudaDevice::release_graphs() {
  for (CudaGraph& graph : graphs_) {
    if (graph != nullptr) api_.release(std::exchange(graph, nullptr));
  }
}

}  // namespace tessera
