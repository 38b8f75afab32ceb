// Bounds of candidates: seconds that they cannot beat, from estimates and from what was priced.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "plan/plan_queue.h"

namespace tessera {

class Bounds {
 public:
  explicit Bounds(const Candidates& candidates) : candidates_(candidates) {}

  /// A lower bound for the assignment, whatever its storage and recompute.
  double of_assignment(size_t assignment) const;
  /// Fills in the bound, the guess and the transient bytes of the entry's candidate.
  void estimate(QueueEntry& entry) const;
  /// The larger of an entry's bound and what priced plans say of it.
  double of(const QueueEntry& entry) const;
  /// The plan's computing bounds all candidates that compute the same, its waiting for axes without
  /// copies also those of its assignment: they differ in storage, which only adds to that.
  void learn(const Candidate& c, const PricedPlan& plan);

 private:
  using Computing = std::tuple<std::vector<int64_t>, size_t, size_t>;
  using SameAssignment = std::tuple<size_t, size_t, size_t>;
  Computing computing(const Candidate& c) const;
  SameAssignment same_assignment(const Candidate& c) const;

  const Candidates& candidates_;
  std::map<SameAssignment, double> known_;       ///< assignment, recompute, microbatches
  std::map<Computing, double> known_computing_;  ///< cuts of dims, recompute, microbatches
};

}  // namespace tessera
