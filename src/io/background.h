// A background thread that runs tasks in order, and a bounded pool of memory for their data.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "io/output_file.h"

namespace tessera {

/// All members must be called by one thread.
class Background {
 public:
  static constexpr int64_t kChunk = int64_t{4} << 20;

  /// The chunks have at most `bytes` bytes in total; there is at least one.
  explicit Background(int64_t bytes);
  /// Drops pending tasks, but waits for the running one.
  ~Background();
  Background(const Background&) = delete;

  /// A chunk of kChunk bytes, aligned for OutputFile. If all are in use, waits until one is
  /// returned.
  std::byte* take_chunk();
  /// Queues `work`; afterwards `chunk` is returned to the pool. If a task throws, later tasks are
  /// skipped.
  void push(std::function<void()> work, std::byte* chunk = nullptr);
  /// Waits at most `seconds` until all tasks are done; false if they are not.
  bool wait(double seconds);
  /// Whether a task has failed since take_failure().
  bool has_failed();
  /// The first failure since the last call; resets it, so that tasks run again. Call after wait().
  std::exception_ptr take_failure();

 private:
  struct Task {
    std::function<void()> work;
    std::byte* chunk;
  };
  void serve();

  size_t most_chunks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::vector<AlignedBytes> chunks_;
  std::vector<std::byte*> free_;
  std::exception_ptr failure_;
  bool busy_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace tessera
