// Lower bounds on the time of candidates, from estimates and from plans already priced.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "plan/plan_queue.h"

namespace tessera {

class Bounds {
 public:
  explicit Bounds(const Candidates& candidates) : candidates_(candidates) {}

  /// The bound of an assignment with any storage and recompute.
  double of_assignment(size_t assignment) const;
  /// Fills in the bound, the guess and the transient bytes of the entry's candidate.
  void estimate(QueueEntry& entry) const;
  /// The bound of an entry: the larger of its estimate and of what priced plans imply.
  double of(const QueueEntry& entry) const;
  /// Derives bounds from a priced plan. Its compute time bounds all candidates that cut the dims in
  /// the same way. That plus its exposed communication over axes without parameter replicas bounds
  /// all candidates of the same assignment: they differ in storage, which only adds communication.
  void learn(const Candidate& c, const PricedPlan& plan);

 private:
  using Computing = std::tuple<std::vector<int64_t>, size_t, size_t, PipelineSchedule, int64_t>;
  using SameAssignment = std::tuple<size_t, size_t, size_t, PipelineSchedule, int64_t>;
  Computing computing(const Candidate& c) const;
  SameAssignment same_assignment(const Candidate& c) const;

  const Candidates& candidates_;
  /// By assignment or slices by dim; recompute, microbatches, schedule, chunks.
  std::map<SameAssignment, double> known_;
  std::map<Computing, double> known_computing_;
};

}  // namespace tessera
