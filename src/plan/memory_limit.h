// Which candidates fit into a device's memory, according to estimates.
#pragma once

#include <cstdint>
#include <optional>

#include "plan/corrections.h"

namespace tessera {

class MemoryLimit {
 public:
  /// Candidates whose estimate is so many times the limit are left out.
  static constexpr double kTooLarge = 1.25;

  /// Keeps references. `bytes` of a device; 0: no limit.
  MemoryLimit(const Candidates& candidates, const Corrections& corrections, int64_t bytes)
      : candidates_(candidates), corrections_(corrections), bytes_(bytes) {}

  int64_t bytes() const { return bytes_; }
  bool fits(const PricedPlan& plan) const { return bytes_ == 0 || plan.memory() <= bytes_; }
  /// The first microbatch option with which the candidate may fit, if any.
  std::optional<size_t> first_microbatch_option(const Candidate& c);
  /// The same without room for errors of the estimate.
  std::optional<size_t> likely_microbatch_option(const Candidate& c) {
    return fewest_microbatches(c, 0, 1);
  }
  bool likely_fits(const Candidate& c) { return fits_estimate(c, 1); }
  /// True if the candidate fits with the first microbatch option, with room to spare.
  bool surely_fits(const Candidate& c);
  /// The next microbatch option after the candidate's own with which it may fit, if any.
  std::optional<size_t> next_microbatch_option(const Candidate& c);
  /// True if the candidate may fit with its own number of microbatches.
  bool may_fit(const Candidate& c) { return fits_estimate(c, kTooLarge); }
  /// True if it may fit with some number of microbatches.
  bool may_fit_in_microbatches(const Candidate& c) {
    return fewest_microbatches(c, 0, kTooLarge).has_value();
  }
  /// The same with its own number and room to spare.
  bool fits_with_room(const Candidate& c) { return fits_estimate(c, 1 / kTooLarge); }
  /// True if the candidate does not fit, judging from a priced plan of its kind.
  bool is_too_large(const Candidate& c) const;
  /// The least bytes of parameters and state among candidates for which these alone exceeded the
  /// limit.
  double least_stored() const { return least_stored_; }

 private:
  std::optional<size_t> fewest_microbatches(const Candidate& c, size_t from, double slack);
  bool fits_estimate(const Candidate& c, double slack);
  MemoryEstimate estimate(const Candidate& c) const;

  const Candidates& candidates_;
  const Corrections& corrections_;
  int64_t bytes_;
  double least_stored_ = 1e300;
};

}  // namespace tessera
