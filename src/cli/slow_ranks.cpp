// A rank is slow in a stretch of steps if in most of them it is the slowest and clearly so. The
// stretch is that of the largest sum, where a step in which the rank is slow counts 1 and another
// one -1 (Kadane's algorithm).
#include "cli/slow_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace tessera::cli {

namespace {

constexpr double kClearly = 1.2;      ///< times the median
constexpr int kLeastSteps = 5;        ///< of a stretch, net of steps in which the rank is not slow
constexpr double kLeastShare = 0.02;  ///< of all steps

struct Stretch {
  int64_t rank = -1;
  int sum = 0;
  size_t first = 0, last = 0;
};

Stretch longest(const std::vector<SlowestRank>& slowest, int64_t rank) {
  Stretch best;
  int sum = 0;
  size_t first = 0;
  for (size_t i = 0; i < slowest.size(); ++i) {
    if (sum <= 0) sum = 0, first = i;
    sum += slowest[i].rank == rank && slowest[i].ratio >= kClearly ? 1 : -1;
    if (sum > best.sum) best = {rank, sum, first, i};
  }
  return best;
}

double quantile(std::vector<double> values, double share) {
  const auto at =
      values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace

std::string slow_ranks_text(const std::vector<SlowestRank>& slowest,
                            const std::function<std::string(int64_t)>& host_of) {
  if (slowest.empty()) return "";
  std::map<int64_t, int> clearly;
  std::vector<double> ratios;
  for (const SlowestRank& s : slowest) {
    ratios.push_back(s.ratio);
    if (s.ratio >= kClearly) ++clearly[s.rank];
  }
  Stretch best;
  for (const auto& [rank, steps] : clearly) {
    const Stretch found = longest(slowest, rank);
    if (found.sum > best.sum) best = found;
  }
  const double all = static_cast<double>(slowest.size());
  if (best.sum >= std::max<double>(kLeastSteps, kLeastShare * all)) {
    std::vector<double> of_rank;
    for (size_t i = best.first; i <= best.last; ++i) {
      if (slowest[i].rank == best.rank) of_rank.push_back(slowest[i].ratio);
    }
    const std::string host = host_of(best.rank);
    const bool to_end = static_cast<double>(slowest.size() - 1 - best.last) <= 0.05 * all;
    return fmt::format("Rank {}{} is slow: it needs {:.1f} times as long as the median rank, {}.",
                       best.rank, host.empty() ? "" : fmt::format(" ({})", host),
                       quantile(of_rank, 0.5),
                       to_end && best.first == 0 ? "in all steps"
                       : to_end ? fmt::format("from step {:.0f} on", slowest[best.first].step)
                                : fmt::format("from step {:.0f} to {:.0f}",
                                              slowest[best.first].step, slowest[best.last].step));
  }
  const double most = quantile(ratios, 0.95) - 1;
  if (most < kClearly - 1)
    return fmt::format(
        "No rank is slow: in 95 % of the steps all ranks are within {:.0f} % of the median.",
        std::max(1.0, 100 * most));
  return fmt::format(
      "No rank is slow all the time: the slowest one changes from step to step. It needs {:.1f} "
      "times as long as the median rank in half of the steps, {:.1f} times in one of twenty, as on "
      "a machine with other load.",
      quantile(ratios, 0.5), most + 1);
}

}  // namespace tessera::cli
