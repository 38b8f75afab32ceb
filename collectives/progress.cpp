#include "collectives/progress.h"

#include "base/threads.h"

namespace tessera {

Progress::Progress(bool threaded, std::chrono::microseconds period)
    : threaded_(threaded), period_(period) {}

Progress::~Progress() {
  {
    const auto held = lock();
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Progress::add(Driven& driven) {
  if (!threaded_) return;
  const auto held = lock();
  if (!thread_.joinable()) thread_ = start_thread("the progress of collectives", [this] { run(); });
  driven_.push_back(&driven);
  if (driven_.size() == 1) changed_.notify_all();
}

void Progress::remove(Driven& driven) {
  const auto held = lock();
  std::erase(driven_, &driven);
}

void Progress::run() {
  auto held = lock();
  while (!stop_) {
    if (driven_.empty()) {
      changed_.wait(held);
      continue;
    }
    changed_.wait_for(held, period_);
    if (stop_ || Clock::now() - last_ < period_) continue;
    for (Driven* driven : driven_) driven->drive();
  }
}

}  // namespace tessera
