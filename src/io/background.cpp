#include "io/background.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/threads.h"

namespace tessera {

Background::Background(int64_t bytes)
    : most_chunks_(static_cast<size_t>(std::max<int64_t>(1, bytes / kChunk))) {
  // This thread blocks all signals: they are handled by the program's threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const auto restore = [&] { pthread_sigmask(SIG_SETMASK, &before, nullptr); };
  try {
    thread_ = start_thread("saving checkpoints", [this] { serve(); });
  } catch (...) {
    restore();
    throw;
  }
  restore();
}

Background::~Background() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    tasks_.clear();
  }
  changed_.notify_all();
  thread_.join();
}

std::byte* Background::take_chunk() {
  std::unique_lock lock(mutex_);
  if (free_.empty() && chunks_.size() < most_chunks_) {
    chunks_.push_back(aligned_bytes(kChunk));
    return chunks_.back().get();
  }
  changed_.wait(lock, [&] { return !free_.empty(); });
  std::byte* const chunk = free_.back();
  free_.pop_back();
  return chunk;
}

void Background::push(std::function<void()> work, std::byte* chunk) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back({std::move(work), chunk});
  }
  changed_.notify_all();
}

bool Background::wait(double seconds) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                           [&] { return tasks_.empty() && !busy_; });
}

bool Background::has_failed() {
  const std::lock_guard lock(mutex_);
  return failure_ != nullptr;
}

std::exception_ptr Background::take_failure() {
  const std::lock_guard lock(mutex_);
  return std::exchange(failure_, nullptr);
}

void Background::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !tasks_.empty(); });
    if (stop_) return;
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    busy_ = true;
    if (!failure_) {
      lock.unlock();
      std::exception_ptr failure;
      try {
        task.work();
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      if (!failure_) failure_ = failure;
    }
    if (task.chunk != nullptr) free_.push_back(task.chunk);
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace tessera
