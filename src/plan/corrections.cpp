#include "plan/corrections.h"

namespace tessera {

Corrections::Kind Corrections::kind(const Candidate& c) const {
  return {candidates_.assignment(c).picks, c.storage.stage, c.recompute_option};
}

double Corrections::time(const Candidate& c) const {
  const auto known = times_.find(kind(c));
  return known == times_.end() ? 1 : known->second;
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
