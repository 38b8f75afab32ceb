// What priced plans teach about estimates: candidates of one kind err alike.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "plan/candidates.h"

namespace tessera {

/// A kind: the dims of each axis (not the axes' sizes), the ZeRO stage and the recompute option.
class Corrections {
 public:
  explicit Corrections(const Candidates& candidates) : candidates_(candidates) {}

  /// Priced seconds over guessed ones; 1 if no plan of the kind was priced.
  double time(const Candidate& c) const;
  void set_time(const Candidate& c, double factor) { times_[kind(c)] = factor; }
  /// Priced transient bytes over estimated ones; nothing if no plan of the kind was priced.
  std::optional<double> memory(const Candidate& c) const;
  void set_memory(const Candidate& c, double factor) { bytes_[kind(c)] = factor; }
  /// The candidate's dims claim one axis, so no mesh makes such an assignment legal.
  void set_contradiction(const Candidate& c);
  bool is_contradiction(const Candidate& c) const;

 private:
  using Kind = std::tuple<std::vector<DimSet>, int, size_t>;
  Kind kind(const Candidate& c) const;

  const Candidates& candidates_;
  std::map<Kind, double> times_, bytes_;
  std::set<std::vector<DimSet>> contradictions_;
};

}  // namespace tessera
