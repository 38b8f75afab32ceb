// Binds the steps of a Program on one rank: addresses, kernels and collectives, once and for all.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "runtime/collective_runner.h"
#include "runtime/kernel_faults.h"

namespace tessera {

class StepBinder {
 public:
  StepBinder(RankContext& rank, RankMemory& memory, CollectiveRunner& collectives,
             KernelFaults& faults)
      : rank_(rank), memory_(memory), collectives_(collectives), faults_(faults) {}
  /// One bound step for each of `steps`. Collective. Throws unsupported where the device cannot run
  /// a step.
  std::vector<BoundStep> bind(const std::vector<Step>& steps);

 private:
  std::unique_ptr<Kernel> bind_kernel(const Step& step);
  std::unique_ptr<BoundLoop> bind_loop(const Step& step);

  RankContext& rank_;
  RankMemory& memory_;
  CollectiveRunner& collectives_;
  KernelFaults& faults_;
  int64_t iteration_ = 0;  ///< of the innermost loop
  /// Started in a loop, by number and iteration: another loop may wait for it.
  std::map<std::pair<int, int64_t>, BoundBucket*> started_;
};

/// The counter of a loop in its iteration `iteration`, on the rank at `coordinates`.
int64_t counter_of(const Step& loop, int64_t iteration, std::span<const int> coordinates);

}  // namespace tessera
