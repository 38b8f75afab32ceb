// The threads that share one rank's kernels.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <type_traits>
#include <vector>

namespace tessera {

/// A fork-join team: run() has a part for each thread and returns when all are done. The caller is
/// one of the threads, and takes the parts of threads that are not there yet: a thread that has to
/// be woken, or whose core is busy, costs no time. Idle threads spin for some microseconds, then
/// sleep. Only one run() at a time.
class ThreadPool {
 public:
  /// threads >= 1. Until start(), the caller makes all parts.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// Creates size() - 1 threads, once. Throws a usage error if the system has no more of them.
  void start();
  int size() const { return static_cast<int>(taken_.size()); }

  /// Calls body(0) .. body(size() - 1), which may be at the same time and need not wait for each
  /// other. Rethrows an exception of one of them.
  template <class Body>
  void run(Body&& body) {
    run_parts([](void* b, int part) { (*static_cast<std::remove_reference_t<Body>*>(b))(part); },
              &body);
  }

 private:
  using Call = void (*)(void* body, int part);
  void run_parts(Call call, void* body);
  /// Whether the thread that asks is the one to make this part of a round.
  bool take(int part, uint32_t round);
  void make(int part);
  void work(int part, uint32_t seen);
  void stop();

  std::vector<std::thread> workers_;
  std::vector<std::exception_ptr> errors_;
  std::vector<std::atomic<uint32_t>> taken_;  ///< by part: the last round in which it was taken
  Call call_ = nullptr;
  void* body_ = nullptr;
  alignas(64) std::atomic<uint32_t> round_{0};
  alignas(64) std::atomic<int> busy_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace tessera
