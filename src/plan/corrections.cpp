#include "plan/corrections.h"

#include <algorithm>

namespace tessera {

namespace {

constexpr double kSevere = 2;  ///< a plan took its square times as long as was guessed

}  // namespace

Corrections::Kind Corrections::kind(const Candidate& c) const {
  return {candidates_.assignment(c).picks, c.storage.stage, c.recompute_option};
}

double Corrections::time(const Candidate& c) const {
  const auto known = times_.find(kind(c));
  return known != times_.end() ? known->second : severe(candidates_.assignment(c).picks);
}

double Corrections::severe(const std::vector<DimSet>& picks) const {
  double most = 1;
  for (const auto& [bad, factor] : severe_) {
    bool holds = bad.size() == picks.size();
    for (size_t i = 0; holds && i < picks.size(); ++i) holds = (picks[i] & bad[i]) == bad[i];
    if (holds) most = std::max(most, factor);
  }
  return most;
}

void Corrections::set_time(const Candidate& c, double factor) {
  times_[kind(c)] = factor;
  const std::vector<DimSet>& picks = candidates_.assignment(c).picks;
  const bool splits = std::any_of(picks.begin(), picks.end(), [](DimSet d) { return d != 0; });
  if (factor >= kSevere && splits) severe_.emplace_back(picks, factor);
}

std::optional<double> Corrections::memory(const Candidate& c) const {
  const auto known = bytes_.find(kind(c));
  return known == bytes_.end() ? std::nullopt : std::optional(known->second);
}

void Corrections::set_contradiction(const Candidate& c) {
  contradictions_.insert(candidates_.assignment(c).picks);
}

bool Corrections::is_contradiction(const Candidate& c) const {
  return contradictions_.contains(candidates_.assignment(c).picks);
}

}  // namespace tessera
