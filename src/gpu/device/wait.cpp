#include "gpu/device/wait.h"

#include <chrono>
#include <thread>

#include "base/fail.h"

namespace tessera {

void GpuWait::finish(CudaStream stream) {
  CudaStreamApi& api = gpu_.api.streams();
  if (!groups_.any()) return api.synchronize(stream);
  if (finished_ == nullptr) finished_ = streams_.make_event();
  api.record(finished_, stream);
  await(finished_);
}

void GpuWait::await(CudaEvent event) {
  const auto start = std::chrono::steady_clock::now();
  while (!gpu_.api.streams().passed(event)) {
    if (const std::string trouble = groups_.trouble(); !trouble.empty()) give_up(trouble);
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
    if (waited.count() > gpu_.world.timeout())
      give_up(fmt::format("waited {:.0f} s for collectives with other GPUs", waited.count()));
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

void GpuWait::give_up(const std::string& why) {
  groups_.abort();
  fail(ErrorKind::comm, "rank {} on {}: {}; the last collective that ended is {}",
       gpu_.world.rank(), gpu_.name(), why, reports_.last());
}

}  // namespace tessera
