// Which candidates fit into a device's memory, as far as estimates can tell.
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
  /// The first microbatch option with which the candidate may fit; nothing if there is none.
  std::optional<size_t> first_microbatch_option(const Candidate& c);
  /// True if the candidate fits with the first microbatch option, with room to spare.
  bool surely_fits(const Candidate& c);
  /// The next option behind the candidate's own, which did not fit, with which it may.
  std::optional<size_t> next_microbatch_option(const Candidate& c);
  /// True if the candidate does not fit, by what a plan of its kind on another mesh needed.
  bool is_too_large(const Candidate& c) const;
  /// The least bytes of parameters and state of candidates that left no room for anything else.
  double least_stored() const { return least_stored_; }

 private:
  std::optional<size_t> fewest_microbatches(const Candidate& c, size_t from, double slack);

  const Candidates& candidates_;
  const Corrections& corrections_;
  int64_t bytes_;
  double least_stored_ = 1e300;
};

}  // namespace tessera
