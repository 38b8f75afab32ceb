// A progress thread: moves transfers while their rank computes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera {

/// Something in progress that only advances when it is driven.
class Driven {
 public:
  virtual ~Driven() = default;
  /// Advances as far as possible without blocking.
  virtual void drive() = 0;
};

/// A thread that drives whatever nobody else has driven for `period`. It sleeps while the rank
/// drives its transfers itself (between short steps, or in a wait), and costs one wake-up per
/// period while anything is in progress. It drives under lock(); everybody else who touches what is
/// added must hold lock() too. Starts with the first add(). threaded: false if the transfers'
/// library does not allow a second thread; then nothing is driven here.
class Progress {
 public:
  explicit Progress(bool threaded,
                    std::chrono::microseconds period = std::chrono::microseconds(500));
  ~Progress();
  Progress(const Progress&) = delete;

  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
  /// Adds or removes something to drive. When remove() returns it is not being driven any more.
  void add(Driven& driven);
  void remove(Driven& driven);
  /// Requires lock(). Notes that the caller has just driven.
  void note() { last_ = Clock::now(); }

 private:
  using Clock = std::chrono::steady_clock;
  void run();
  const bool threaded_;
  const std::chrono::microseconds period_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Driven*> driven_;
  Clock::time_point last_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tessera
