// The threads that share one rank's kernels.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <type_traits>
#include <vector>

namespace tessera {

/// A fork-join team: run() gives one part to each thread and returns when all are done. The caller
/// is one of the threads. Idle threads spin for some microseconds, then sleep. Only one run() at a
/// time.
class ThreadPool {
 public:
  /// threads >= 1; creates threads - 1 threads.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls body(0) .. body(size() - 1), each on its own thread. Rethrows an exception of one of
  /// them.
  template <class Body>
  void run(Body&& body) {
    run_parts([](void* b, int part) { (*static_cast<std::remove_reference_t<Body>*>(b))(part); },
              &body);
  }

 private:
  using Call = void (*)(void* body, int part);
  void run_parts(Call call, void* body);
  void work(int part);
  void stop();

  std::vector<std::thread> workers_;
  std::vector<std::exception_ptr> errors_;
  Call call_ = nullptr;
  void* body_ = nullptr;
  alignas(64) std::atomic<uint32_t> round_{0};
  alignas(64) std::atomic<int> busy_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace tessera
