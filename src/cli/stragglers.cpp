#include "cli/stragglers.h"

#include <algorithm>

#include "base/fail.h"

namespace tessera::cli {

namespace {

/// The lower median: of two ranks the faster.
double lower_median(std::vector<double> values) {
  const size_t middle = (values.size() - 1) / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<long>(middle), values.end());
  return values[middle];
}

}  // namespace

std::string Stragglers::after_step(int64_t step, const std::vector<double>& own,
                                   const std::vector<std::string>& hosts) {
  constexpr double kMore = 2e-3;
  const auto worst = std::max_element(own.begin(), own.end());
  slowest_ = static_cast<int>(worst - own.begin());
  slowest_seconds_ = *worst;
  median_seconds_ = lower_median(own);
  sums_.resize(own.size());
  for (size_t r = 0; r < own.size(); ++r) sums_[r] += own[r];
  if (++steps_ < kWindow) return "";
  for (double& sum : sums_) sum /= steps_;
  const auto slow = std::max_element(sums_.begin(), sums_.end());
  const double usual = lower_median(sums_);
  std::string line;
  if (*slow > kSlow * usual && *slow > usual + kMore) {
    const auto rank = static_cast<size_t>(slow - sums_.begin());
    slow_ = static_cast<int>(rank);
    line = fmt::format(
        "rank {}{} is slow: {:.1f} ms of its own work a step, the median is {:.1f} ms (steps {} to "
        "{})",
        rank, rank < hosts.size() ? " on " + hosts[rank] : "", *slow * 1e3, usual * 1e3,
        step - steps_ + 1, step);
  }
  sums_.assign(own.size(), 0);
  steps_ = 0;
  return line;
}

}  // namespace tessera::cli
