// Finds ranks that are slower than the others. All ranks end a step together, so their time is
// compared without the time they spent waiting.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::cli {

class Stragglers {
 public:
  static constexpr int kWindow = 20;    ///< steps to average over
  static constexpr double kSlow = 1.5;  ///< times the median, of a rank that is called slow

  /// `own`: for each rank, the seconds of its own work in step `step` (counted from 1). Every
  /// kWindow steps returns a line about the slowest rank if it needs more than kSlow times the
  /// median and at least 2 ms more; else "". `hosts`: one per rank, or empty.
  std::string after_step(int64_t step, const std::vector<double>& own,
                         const std::vector<std::string>& hosts);
  /// The rank of the last line.
  int slow() const { return slow_; }
  /// These three are of the last step.
  int slowest() const { return slowest_; }
  double slowest_seconds() const { return slowest_seconds_; }
  double median_seconds() const { return median_seconds_; }

 private:
  std::vector<double> sums_;
  int steps_ = 0, slowest_ = 0, slow_ = -1;
  double slowest_seconds_ = 0, median_seconds_ = 0;
};

}  // namespace tessera::cli
