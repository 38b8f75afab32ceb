// Stacks of other threads of this process.
#pragma once

#include <signal.h>

#include <atomic>
#include <string>
#include <utility>
#include <vector>

namespace tessera::cli {

/// While the object lives a signal is handled in which a thread writes down its own stack. At most
/// one object per process.
class Stacks {
 public:
  Stacks();
  ~Stacks();
  Stacks(const Stacks&) = delete;
  /// The frames of a thread (gettid), innermost first: "gemm(...) +0x12 in libopenblas.so.0". One
  /// line that says so if the thread does not answer within a second.
  std::vector<std::string> of(int thread);

 private:
  static constexpr int kMostFrames = 64;
  static void answer(int signal);

  /// What the signal's handler, which is given no argument, works for; null: nothing.
  static std::atomic<Stacks*> current_;
  std::atomic<int> asked_{0};  ///< the thread that is to answer; 0: none
  std::atomic<int> count_{-1};
  void* frames_[kMostFrames] = {};
  struct sigaction before_ = {};
};

/// The threads of this process that the library made for other work than a rank's, by their names:
/// "tessera-reader".
std::vector<std::pair<int, std::string>> helping_threads();

}  // namespace tessera::cli
