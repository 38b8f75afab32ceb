// Moves transfers while their rank computes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera {

/// What is under way and moves only when it is called.
class Driven {
 public:
  virtual ~Driven() = default;
  /// Goes on as far as it can; never waits.
  virtual void drive() = 0;
};

/// A thread that drives what nobody else has driven for `period`: it sleeps while the rank looks
/// after its transfers itself, between short steps or in a wait, and costs a wake-up a period
/// while anything is under way. Drives under lock(), which all others hold who touch what is added.
/// Starts with the first add(). threaded: false where the transfers' library allows no second
/// thread; then nothing is driven here.
class Progress {
 public:
  explicit Progress(bool threaded,
                    std::chrono::microseconds period = std::chrono::microseconds(500));
  ~Progress();
  Progress(const Progress&) = delete;

  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
  /// What was added stays until it is removed; when remove() returns it is not driven any more.
  void add(Driven& driven);
  void remove(Driven& driven);
  /// Under lock(): somebody drives now.
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
