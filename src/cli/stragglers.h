// Ranks that are slower than the others. All ranks end a step together, so what tells them apart is
// the part of it that each did not spend waiting.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::cli {

class Stragglers {
 public:
  static constexpr int kWindow = 20;  ///< steps that a mean is taken of

  /// `own`: seconds of its own work in step `step` (from 1), of each rank. Every kWindow steps
  /// returns a line about the slowest rank if it needs more than 1.5 times the median and 2 ms
  /// more; else "". `hosts`: of each rank, or none.
  std::string after_step(int64_t step, const std::vector<double>& own,
                         const std::vector<std::string>& hosts);
  /// Of the last step.
  int slowest() const { return slowest_; }
  double slowest_seconds() const { return slowest_seconds_; }
  double median_seconds() const { return median_seconds_; }

 private:
  std::vector<double> sums_;
  int steps_ = 0, slowest_ = 0;
  double slowest_seconds_ = 0, median_seconds_ = 0;
};

}  // namespace tessera::cli
