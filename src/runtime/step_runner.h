// Runs bound steps one by one.
#pragma once

#include <functional>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "runtime/collective_runner.h"
#include "runtime/finite_check.h"
#include "runtime/kernel_faults.h"
#include "runtime/step_recorder.h"

namespace tessera {

class StepRunner {
 public:
  StepRunner(RankContext& rank, CollectiveRunner& collectives, KernelFaults& faults,
             StepRecorder& recorder, bool profile, std::function<bool()> interrupted)
      : rank_(rank),
        collectives_(collectives),
        faults_(faults),
        recorder_(recorder),
        profile_(profile),
        interrupted_(std::move(interrupted)) {}
  struct Interrupted {};
  /// While it lives, run() asks `interrupted` some times a second, and throws Interrupted.
  class Interruptible {
   public:
    explicit Interruptible(StepRunner& steps) : steps_(steps) {
      if (steps_.interrupted_) steps_.asks_at_ = host_seconds() + kBetween;
    }
    ~Interruptible() { steps_.asks_at_ = kNever; }
    Interruptible(const Interruptible&) = delete;

   private:
    StepRunner& steps_;
  };

  /// Runs steps [first, last). With a `search`, every result is examined. Throws what a collective
  /// reports; what kernels find in data is noted.
  void run(std::vector<BoundStep>& steps, size_t first, size_t last,
           NonFiniteSearch* search = nullptr);
  /// True if every step is timed on its own, so that nothing may be run as one.
  bool is_measured() const { return profile_ || recorder_; }

 private:
  static constexpr double kBetween = 0.1, kNever = std::numeric_limits<double>::infinity();
  void ask();
  static void examine(const BoundStep& bound, NonFiniteSearch& search);
  void run_step(BoundStep& bound, NonFiniteSearch* search);
  std::pair<int64_t, int64_t> window(const LoopStep& loop) const;
  void run_loop(BoundStep& bound, NonFiniteSearch* search);

  RankContext& rank_;
  CollectiveRunner& collectives_;
  KernelFaults& faults_;
  StepRecorder& recorder_;
  bool profile_;
  std::function<bool()> interrupted_;
  double asks_at_ = kNever;  ///< in host_seconds()
};

}  // namespace tessera
