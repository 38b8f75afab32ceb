// Prices candidates by lowering, two at a time.
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
  bool contradicts = false;  ///< nor on any other mesh
};

class CandidatePricer {
 public:
  /// Keeps references.
  CandidatePricer(Candidates& candidates, const Stopwatch& clock)
      : candidates_(candidates), clock_(clock) {}

  /// Throws the usage errors of its layout. `whole`: see Pricer::price().
  PricedPlan price(const Candidate& c, bool whole);
  /// Each in a thread of its own, in the same order.
  std::vector<PricedCandidate> price(const std::vector<Candidate>& batch);
  /// The legal ones of those that can be priced until the clock says `until`, all times multiplied
  /// by `scale` (see scale_of()).
  std::vector<PricedCandidate> price_scaled(const std::vector<Candidate>& all, double scale,
                                            double until);
  /// How much longer a plan takes by its table, where layers are a loop, than with its layers one
  /// by one, as plans with scoped rules are priced.
  double scale_of(const PricedCandidate& plain);
  /// Candidates that price_scaled() priced.
  int64_t scaled() const { return scaled_; }

 private:
  Candidates& candidates_;
  const Stopwatch& clock_;
  int64_t scaled_ = 0;
};

}  // namespace tessera
