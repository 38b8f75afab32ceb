// The plans that come nearest, lowered whole.
#pragma once

#include "plan/found_plans.h"
#include "plan/memory_limit.h"

namespace tessera {

/// A search extrapolates from few layers, or prices layers that run one by one as a loop. Buckets
/// then end elsewhere and gathered parameters live longer, which is a few percent. So the few plans
/// that come nearest are lowered as they will run, and the fastest of them becomes the best.
class WholeProgramCheck {
 public:
  /// Keeps references.
  WholeProgramCheck(Candidates& candidates, CandidatePricer& pricer, const MemoryLimit& memory,
                    FoundPlans& found, const Stopwatch& clock)
      : candidates_(candidates), pricer_(pricer), memory_(memory), found_(found), clock_(clock) {}

  void run();

 private:
  std::vector<size_t> nearest() const;

  Candidates& candidates_;
  CandidatePricer& pricer_;
  const MemoryLimit& memory_;
  FoundPlans& found_;
  const Stopwatch& clock_;
};

}  // namespace tessera
