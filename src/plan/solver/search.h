// The two ways to solve a model: exactly if its graph is narrow; with bounds from below and plans
// from above if it is wide.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "plan/solver/elimination.h"
#include "plan/solver/model.h"

namespace tessera::solver {

/// What is known of a model; costs are scaled, base included.
struct Found {
  bool has = false;         ///< there is a choice that is allowed and fits
  std::vector<int> choice;  ///< the best of them
  int64_t cost = kWall;
  int64_t bound = 0;
  std::vector<int64_t> prices;    ///< that give the bound
  bool near = false;              ///< there is a choice that is allowed but does not fit
  std::vector<int> least_excess;  ///< the one that exceeds the limit least
  bool impossible = false;        ///< proved: no choice is allowed and fits
  double first_seconds = 0;
  std::string how;
};

/// True if no choice costs less. Costs are multiples of 2^shift, so a bound within that is enough.
inline bool is_closed(const Model& model, const Found& found) {
  return found.has && found.cost - found.bound < int64_t{1} << std::max(model.shift, 0);
}

/// Wall time since a solve began.
class Clock {
 public:
  explicit Clock(double limit) : limit_(limit) {}
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  bool over() const { return seconds() >= limit_; }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double limit_;
};

/// Takes `choice` if it is the best that is allowed and fits.
void offer(const Model& model, const std::vector<int>& choice, const Clock& clock, Found& found);

/// Needs elimination.fits().
void solve_narrow(const Model& model, Elimination& elimination, const Options& options,
                  const Clock& clock, Found& found);
void solve_wide(const Model& model, const Options& options, const Clock& clock, Found& found);

}  // namespace tessera::solver
