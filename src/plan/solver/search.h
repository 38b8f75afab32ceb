// The two ways to solve a model: exactly if its graph is narrow, otherwise with lower bounds and
// local search.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "plan/solver/elimination.h"
#include "plan/solver/model.h"

namespace tessera::solver {

/// What is known of a model. Costs are scaled and include base.
struct Found {
  bool has = false;         ///< an allowed choice that fits was found
  std::vector<int> choice;  ///< the best of these
  int64_t cost = kWall;
  int64_t bound = 0;
  std::vector<int64_t> prices;    ///< those that give the bound
  bool near = false;              ///< an allowed choice that does not fit was found
  std::vector<int> least_excess;  ///< the one of these that exceeds the limit least
  bool impossible = false;        ///< proved: no allowed choice fits
  double first_seconds = 0;
  std::string how;
};

/// True if `choice` is proved optimal. Costs are multiples of 2^shift, so a bound within one unit
/// is enough.
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

/// Records `choice` if it is the best that is allowed and fits.
void offer(const Model& model, const std::vector<int>& choice, const Clock& clock, Found& found);

/// Requires elimination.fits().
void solve_narrow(const Model& model, Elimination& elimination, const Options& options,
                  const Clock& clock, Found& found);
void solve_wide(const Model& model, const Options& options, const Clock& clock, Found& found);

}  // namespace tessera::solver
