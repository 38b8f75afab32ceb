// A rank is slow in a stretch of steps if in most of them it is the slowest and clearly so. The
// stretch is that of the largest sum, where a step in which the rank is slow counts 1 and another
// one -1 (Kadane's algorithm). Of several stretches the one in which most time is lost counts. A
// rank that is slow in single steps is named if most of the lost time is its.
#include "cli/slow_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "cli/stragglers.h"

namespace tessera::cli {

namespace {

constexpr double kClearly = 1.2;      ///< times the median
constexpr size_t kLeastSteps = 5;     ///< of a stretch, net of steps in which the rank is not slow
constexpr double kLeastShare = 0.02;  ///< of all steps
constexpr double kLeastLost = 0.25;   ///< of the time that slow ranks lose, in a stretch

struct Stretch {
  int64_t rank = -1;
  int sum = 0;
  size_t first = 0, last = 0;
  double lost = 0;  ///< in it, by the rank, in times of a median rank
};

bool is_clear(const SlowestRank& s, int64_t rank) { return s.rank == rank && s.ratio >= kClearly; }

Stretch longest(const std::vector<SlowestRank>& slowest, int64_t rank) {
  Stretch best;
  int sum = 0;
  size_t first = 0;
  for (size_t i = 0; i < slowest.size(); ++i) {
    if (sum <= 0) sum = 0, first = i;
    sum += is_clear(slowest[i], rank) ? 1 : -1;
    if (sum > best.sum) best = {rank, sum, first, i};
  }
  for (size_t i = best.first; best.sum > 0 && i <= best.last; ++i) {
    if (is_clear(slowest[i], rank)) best.lost += slowest[i].ratio - 1;
  }
  return best;
}

double quantile(std::vector<double> values, double share) {
  const auto at =
      values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

std::string named(int64_t rank, const std::function<std::string(int64_t)>& host_of) {
  const std::string host = host_of(rank);
  return fmt::format("Rank {}{}", rank, host.empty() ? "" : fmt::format(" ({})", host));
}

/// The rank that is slow in single steps and loses most of the time that slow ranks lose; "" if
/// there is none. `lost`: by rank.
std::string slow_now_and_then(const std::vector<SlowestRank>& slowest,
                              const std::map<int64_t, double>& lost,
                              const std::function<std::string(int64_t)>& host_of) {
  const auto worst = std::max_element(
      lost.begin(), lost.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (worst == lost.end()) return "";
  double all = 0;
  for (const auto& [rank, time] : lost) all += time;
  std::set<int64_t> ranks;
  std::vector<double> ratios;
  double sum = 0, from = -1, to = -1;  // the steps in which it loses 8 of 10
  for (const SlowestRank& s : slowest) {
    ranks.insert(s.rank);
    if (s.rank != worst->first || s.ratio < kClearly) continue;
    if (s.ratio >= Stragglers::kSlow) ratios.push_back(s.ratio);
    sum += s.ratio - 1;
    if (from < 0 && sum >= 0.1 * worst->second) from = s.step;
    if (to < 0 && sum >= 0.9 * worst->second) to = s.step;
  }
  // Of two ranks, one loses half or more by chance.
  const double least = std::max(0.5, 1.5 / static_cast<double>(ranks.size()));
  if (ratios.size() < kLeastSteps || worst->second < least * all) return "";
  return fmt::format(
      "{} is slow now and then: in {} of {} steps it needs {:.1f} times as long as the median rank "
      "or longer, {:.1f} times in half of those. {:.0f} % of the time that slow ranks cost is "
      "lost by it, nearly all in steps {:.0f} to {:.0f}.",
      named(worst->first, host_of), ratios.size(), slowest.size(), Stragglers::kSlow,
      quantile(ratios, 0.5), 100 * worst->second / all, from, to);
}

}  // namespace

std::string slow_ranks_text(const std::vector<SlowestRank>& slowest,
                            const std::function<std::string(int64_t)>& host_of) {
  if (slowest.empty()) return "";
  std::map<int64_t, double> lost;
  std::vector<double> ratios;
  double all_lost = 0;
  for (const SlowestRank& s : slowest) {
    ratios.push_back(s.ratio);
    if (s.ratio < kClearly) continue;
    lost[s.rank] += s.ratio - 1;
    all_lost += s.ratio - 1;
  }
  const double all = static_cast<double>(slowest.size());
  const double least = std::max(static_cast<double>(kLeastSteps), kLeastShare * all);
  Stretch best;
  for (const auto& [rank, time] : lost) {
    const Stretch found = longest(slowest, rank);
    if (found.sum >= least && found.lost > best.lost) best = found;
  }
  if (best.rank >= 0 && best.lost >= kLeastLost * all_lost) {
    std::vector<double> of_rank;
    for (size_t i = best.first; i <= best.last; ++i) {
      if (slowest[i].rank == best.rank) of_rank.push_back(slowest[i].ratio);
    }
    const bool to_end = static_cast<double>(slowest.size() - 1 - best.last) <= 0.05 * all;
    return fmt::format("{} is slow: it needs {:.1f} times as long as the median rank, {}.",
                       named(best.rank, host_of), quantile(of_rank, 0.5),
                       to_end && best.first == 0 ? "in all steps"
                       : to_end ? fmt::format("from step {:.0f} on", slowest[best.first].step)
                                : fmt::format("from step {:.0f} to {:.0f}",
                                              slowest[best.first].step, slowest[best.last].step));
  }
  if (const std::string text = slow_now_and_then(slowest, lost, host_of); !text.empty())
    return text;
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
