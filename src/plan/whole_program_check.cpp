#include "plan/whole_program_check.h"

namespace tessera {

namespace {

constexpr size_t kMost = 6;
constexpr double kNearest = 1.1;     ///< plans this many times slower than the best are tried
constexpr double kFinalShare = 0.3;  ///< of the asked time

}  // namespace

/// Those that fit, by time, without those that other plans equal to a thousandth: they split a dim
/// of next to nothing besides.
std::vector<size_t> WholeProgramCheck::nearest() const {
  const std::vector<PricedCandidate>& all = found_.all();
  std::vector<size_t> order;
  for (size_t i = 0; i < all.size(); ++i) {
    const bool near = all[i].plan.seconds <= kNearest * found_.best_seconds();
    if (near && memory_.fits(all[i].plan)) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return all[a].plan.seconds < all[b].plan.seconds; });
  std::vector<size_t> chosen;
  for (const size_t i : order) {
    const bool alike = !chosen.empty() && all[i].plan.zero == all[chosen.back()].plan.zero &&
                       all[i].plan.seconds < 1.001 * all[chosen.back()].plan.seconds;
    if (!alike && chosen.size() < kMost) chosen.push_back(i);
  }
  return chosen;
}

void WholeProgramCheck::run() {
  const Pricer& pricer = candidates_.pricer();
  if (!found_.has_best() || !(pricer.is_continued() || pricer.is_looped())) return;
  const double limit = candidates_.options().seconds;
  const double until = std::min(clock_.seconds() + kFinalShare * limit, kWholeEnds * limit);
  std::vector<PricedCandidate>& all = found_.all();
  int best = -1;
  double least = 0;
  std::vector<std::pair<size_t, PricedPlan>> whole;
  for (const size_t i : nearest()) {
    if (best >= 0 && clock_.seconds() >= until) break;
    whole.emplace_back(i, pricer_.price(all[i].candidate, true));
    const PricedPlan& p = whole.back().second;
    if (!memory_.fits(p)) {
      all[i].plan = p;
    } else if (best < 0 || p.seconds < least) {
      best = static_cast<int>(i);
      least = p.seconds;
    }
  }
  if (best < 0) return;
  found_.set_best(static_cast<size_t>(best));
  // The others get prices of the search that are as far from the best plan's as those of the whole.
  // What was not lowered is like one of these, or slower.
  const double seconds = found_.best_seconds(), scale = seconds / least;
  for (PricedCandidate& p : all) {
    if (memory_.fits(p.plan)) p.plan.seconds = std::max(p.plan.seconds, seconds);
  }
  for (const auto& [i, p] : whole) {
    if (memory_.fits(p)) all[i].plan.seconds = scale * p.seconds;
  }
}

}  // namespace tessera
