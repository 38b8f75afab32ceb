// A thread that works off tasks in order, and the bounded memory through which data reaches it.
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

/// One owner thread calls everything.
class Background {
 public:
  static constexpr int64_t kChunk = int64_t{4} << 20;

  /// Chunks in all at most `bytes`, but at least one.
  explicit Background(int64_t bytes);
  /// Drops what is still to be done, but ends the task that runs.
  ~Background();
  Background(const Background&) = delete;

  /// A chunk of kChunk bytes, aligned as OutputFile likes it; waits for the thread to give one back
  /// if all are in use.
  std::byte* take_chunk();
  /// Runs `work` after all that was pushed before. `chunk` is given back then. What throws makes
  /// the thread skip all later tasks but those that run `always`.
  void push(std::function<void()> work, std::byte* chunk = nullptr, bool always = false);
  /// Waits until all is done, at most so long; false if it is not.
  bool wait(double seconds);
  /// The first failure since the last call, which lets the thread work again. After wait().
  std::exception_ptr take_failure();

 private:
  struct Task {
    std::function<void()> work;
    std::byte* chunk;
    bool always;
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
