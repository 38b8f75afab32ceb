// Corrections of estimates by priced plans: estimates of similar candidates err alike.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/candidates.h"

namespace tessera {

/// Candidates are of one kind if they agree in the dims of each axis (not the axes' sizes), the
/// ZeRO stage and the recompute option.
class Corrections {
 public:
  explicit Corrections(const Candidates& candidates) : candidates_(candidates) {}

  /// The factor on guessed seconds. If no plan of the kind was priced: that of a kind which was
  /// guessed far too low and of which each axis splits the same dims or fewer; else 1.
  double time(const Candidate& c) const;
  void set_time(const Candidate& c, double factor);
  /// The factor on estimated transient bytes; nothing if no plan of the kind was priced.
  std::optional<double> memory(const Candidate& c) const;
  void set_memory(const Candidate& c, double factor) { bytes_[kind(c)] = factor; }
  /// Two dims of a tensor claim one axis, so no mesh makes this assignment legal.
  void set_contradiction(const Candidate& c);
  bool is_contradiction(const Candidate& c) const;

 private:
  using Kind = std::tuple<std::vector<DimSet>, int, size_t>;
  Kind kind(const Candidate& c) const;
  double severe(const std::vector<DimSet>& picks) const;

  const Candidates& candidates_;
  std::map<Kind, double> times_, bytes_;
  std::vector<std::pair<std::vector<DimSet>, double>> severe_;
  std::set<std::vector<DimSet>> contradictions_;
};

}  // namespace tessera
