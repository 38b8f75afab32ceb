// Prices candidates by lowering them, two at a time.
#pragma once

#include <string>
#include <vector>

#include "plan/candidates.h"
#include "plan/stopwatch.h"

namespace tessera {

constexpr size_t kPricingThreads = 2;

struct PricedCandidate {
  Candidate candidate;
  PricedPlan plan;
  std::string error = {};    ///< why it is not legal
  bool contradicts = false;  ///< illegal on every mesh
};

class CandidatePricer {
 public:
  /// Keeps references.
  CandidatePricer(Candidates& candidates, const Stopwatch& clock)
      : candidates_(candidates), clock_(clock) {}

  /// Throws the usage errors of the candidate's layout. `whole`: see Pricer::price().
  PricedPlan price(const Candidate& c, bool whole);
  /// Prices each candidate in a thread of its own; results are in the same order.
  std::vector<PricedCandidate> price(const std::vector<Candidate>& batch);
  /// Prices candidates until the clock says `until`, and returns the legal ones with all times
  /// multiplied by `scale` (see scale_of()).
  std::vector<PricedCandidate> price_scaled(const std::vector<Candidate>& all, double scale,
                                            double until);
  /// Plans with scoped rules are priced with unrolled layers, others perhaps with the layers as a
  /// loop. This is the factor from the former price of `plain` to the latter; 1 if layers are never
  /// a loop.
  double scale_of(const PricedCandidate& plain);
  /// The number of candidates that price_scaled() has priced.
  int64_t scaled() const { return scaled_; }

 private:
  Candidates& candidates_;
  const Stopwatch& clock_;
  int64_t scaled_ = 0;
};

}  // namespace tessera
