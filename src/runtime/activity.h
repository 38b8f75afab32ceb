// What a rank is doing, noted by its own thread and read by those who watch it from others.
#pragma once

#include <time.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>

#include "program/program.h"

namespace tessera {

/// A watcher may abandon a rank that stays in one step. The rank's thread then parks for ever as
/// soon as it leaves that step, so that it touches nothing that its caller has given up meanwhile.
class RankActivity {
 public:
  /// By the rank's thread: `step` begins, and the one before it has ended. is_bounded: what the
  /// thread waits for meanwhile has a time-out of its own, as collectives and GPUs have.
  void begin(const Step& step, bool is_bounded) {
    if (abandoned_.load(std::memory_order_relaxed)) park();
    since_.store(now(), std::memory_order_relaxed);
    is_bounded_.store(is_bounded, std::memory_order_relaxed);
    step_.store(&step, std::memory_order_release);
  }
  /// By the rank's thread: the last step has ended. When this returns nobody reads the step any
  /// more.
  void end() {
    {
      const std::lock_guard lock(mutex_);
      if (!abandoned_.load(std::memory_order_relaxed))
        return step_.store(nullptr, std::memory_order_relaxed);
    }
    park();
  }
  /// By the rank's thread, at the start of its work: the system's number of the thread (gettid).
  void note_thread() { thread_.store(gettid(), std::memory_order_relaxed); }

  struct Seen {
    std::string step = {};   ///< "[matmul] gpt.block3.mlp (model.cpp:41)"; "" between steps
    double seconds = 0;      ///< in this step, to some milliseconds
    bool is_bounded = true;  ///< waits for peers or a GPU, which ends by itself; or between steps
    int thread = 0;          ///< 0: unknown
  };
  /// By any thread.
  Seen look() const;
  /// By any thread: see above. False, and nothing happens, between steps.
  bool abandon();

 private:
  /// Nanoseconds of a clock that is cheap to read.
  static int64_t now() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return t.tv_sec * 1'000'000'000 + t.tv_nsec;
  }
  [[noreturn]] static void park() {
    for (;;) pause();
  }

  std::atomic<const Step*> step_{nullptr};
  std::atomic<int64_t> since_{0};
  std::atomic<int> thread_{0};
  std::atomic<bool> is_bounded_{true};
  std::atomic<bool> abandoned_{false};
  mutable std::mutex mutex_;  ///< held while a step is read
};

/// Ends the rank's steps when it goes.
class ActivityScope {
 public:
  explicit ActivityScope(RankActivity* activity) : activity_(activity) {}
  ~ActivityScope() {
    if (activity_ != nullptr) activity_->end();
  }
  ActivityScope(const ActivityScope&) = delete;

 private:
  RankActivity* activity_;
};

}  // namespace tessera
