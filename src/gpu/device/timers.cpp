#include "gpu/device/timers.h"

#include <chrono>

namespace tessera {

int GpuTimers::mark(bool transfers) {
  if (timers_.empty()) {
    timers_.push_back(api_.make_timer());
    api_.record(timers_[0], streams_.compute());
    wait_.finish(streams_.compute());
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    epoch_ = std::chrono::duration<double>(now).count();
  }
  if (++marks_ >= timers_.size()) timers_.push_back(api_.make_timer());
  api_.record(timers_[marks_], transfers ? streams_.transfers() : streams_.compute());
  return static_cast<int>(marks_) - 1;
}

std::vector<double> GpuTimers::marks() {
  wait_.finish(streams_.compute());
  wait_.finish(streams_.transfers());
  std::vector<double> times;
  for (size_t m = 1; m <= marks_; ++m)
    times.push_back(epoch_ + api_.seconds_between(timers_[0], timers_[m]));
  marks_ = 0;
  return times;
}

void GpuTimers::release() {
  for (CudaEvent timer : timers_) api_.release(timer);
  timers_.clear();
}

}  // namespace tessera
