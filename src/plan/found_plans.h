// The plans that a search has priced, and the best of them.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "plan/candidate_pricer.h"

namespace tessera {

class FoundPlans {
 public:
  std::vector<PricedCandidate>& all() { return all_; }
  const std::vector<PricedCandidate>& all() const { return all_; }
  void add(PricedCandidate p) { all_.push_back(std::move(p)); }
  void add_best(PricedCandidate p) {
    add(std::move(p));
    best_ = static_cast<int>(all_.size()) - 1;
  }
  bool has_best() const { return best_ >= 0; }
  const PricedCandidate& best() const { return all_.at(static_cast<size_t>(best_)); }
  double best_seconds() const { return best().plan.seconds; }
  void set_best(size_t i) { best_ = static_cast<int>(i); }
  /// Only plans faster than this count; see cutoff().
  void set_below(double seconds) { below_ = seconds; }
  bool has_below() const { return below_ < 1e300; }
  /// Plans that take this long or longer are of no use.
  double cutoff() const { return has_best() ? std::min(best_seconds(), below_) : below_; }

 private:
  std::vector<PricedCandidate> all_;
  int best_ = -1;
  double below_ = 1e300;
};

}  // namespace tessera
