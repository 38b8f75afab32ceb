// Scoped rules of the planner: rules for segments of the model, such as `@/*norm*/ length:model`.
#pragma once

#include <string>
#include <vector>

#include "plan/found_plans.h"
#include "plan/memory_limit.h"

namespace tessera {

/// Two lists of rules as one.
std::string joined(const std::string& rules, const std::string& more);

/// Tries scoped rules with the best plans of a search, and adds plans that pay.
class ScopedRules {
 public:
  /// Keeps references.
  ScopedRules(Candidates& candidates, CandidatePricer& pricer, const MemoryLimit& memory,
              FoundPlans& found, const Stopwatch& clock)
      : candidates_(candidates), pricer_(pricer), memory_(memory), found_(found), clock_(clock) {}

  void run();
  /// Seconds from the start of the search to the start of run().
  double begin_seconds() const { return begin_seconds_; }
  /// Seconds of the best plan without scoped rules; 0 if none fits.
  double plain_seconds() const { return plain_seconds_; }
  /// For the best plan and its alternatives: see CandidatePricer::scale_of().
  double scale() const { return scale_; }

 private:
  std::vector<size_t> plans_to_try() const;
  void try_plan(const PricedCandidate& plain, double until);
  std::vector<PricedCandidate> best_of_rounds(const PricedCandidate& plain, double scale,
                                              double until);
  void spend_memory(PricedCandidate& p, double scale, double until);
  void drop_dims(double until);
  std::pair<bool, double> cost(const PricedPlan& p) const;
  bool is_better(const PricedPlan& x, const PricedPlan& y) const;

  Candidates& candidates_;
  CandidatePricer& pricer_;
  const MemoryLimit& memory_;
  FoundPlans& found_;
  const Stopwatch& clock_;
  double begin_seconds_ = 0, plain_seconds_ = 0, scale_ = 1;
};

}  // namespace tessera
