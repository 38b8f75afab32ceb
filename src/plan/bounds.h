// Lower bounds on the time of candidates, from estimates and from plans already priced.
#pragma once

#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/plan_queue.h"

namespace tessera {

class Bounds {
 public:
  explicit Bounds(const Candidates& candidates)
      : candidates_(candidates), has_caches_(candidates.machine().has_caches()) {}

  /// The bound of an assignment with any storage, and with this recompute option or one that
  /// computes more.
  double of_assignment(size_t assignment, size_t recompute_option = 0) const;
  /// The key with which it is looked at.
  double key_of_assignment(size_t assignment) const;
  /// A bound of a candidate's compute, from its estimate and from priced plans.
  double least(const Candidate& c) const;
  /// Fills in the bound, the guess and the transient bytes of the entry's candidate.
  void estimate(QueueEntry& entry) const;
  /// The bound of an entry: the larger of its estimate and of what priced plans imply.
  double of(const QueueEntry& entry) const;
  /// Derives bounds from a priced plan. Its compute time bounds that of all candidates that cut the
  /// dims in the same way, with the same microbatches and schedule, and with what is stored and
  /// summed in slices no smaller. That plus its exposed communication over axes without parameter
  /// replicas bounds all candidates of the same assignment: they differ in storage, which only adds
  /// communication. Without what stages wait for and hand over, and with a margin, both bound those
  /// in more microbatches and in other schedules too: the same work in smaller parts, unless the
  /// machine has caches for these.
  void learn(const Candidate& c, const PricedPlan& plan);

 private:
  using Computing = std::tuple<std::vector<int64_t>, size_t, bool>;
  using SameAssignment = std::tuple<size_t, size_t, size_t, std::string, int64_t, bool>;
  Computing computing(const Candidate& c) const;
  double computed(const Candidate& c) const;
  double in_stages(const Candidate& c) const;
  int64_t slices(const Candidate& c) const;
  /// How much a second of transfers counts beside compute, which it either delays or slows down:
  /// with this weight, no instant counts more than its time (see tensor_layouts/least_step.cpp).
  double slows() const;
  /// What these seconds of transfers add to the compute of a candidate. In a bubble they are free.
  double slowed_by(const Candidate& c, double sent) const;
  double guess(const Candidate& c, const Microbatching& by) const;
  SameAssignment same_assignment(const Candidate& c) const;

  const Candidates& candidates_;
  bool has_caches_;  ///< more microbatches may compute in less time
  /// By assignment, recompute, microbatches, schedule, chunks, how gradients are reduced.
  std::map<SameAssignment, double> known_;
  /// By assignment, recompute and how gradients are reduced: microbatches, and the seconds of what
  /// stages do by themselves.
  std::map<std::tuple<size_t, size_t, bool>, std::vector<std::pair<int64_t, double>>>
      known_in_stages_;
  /// Compute of a priced plan, that in a bubble included.
  struct Computed {
    Microbatching microbatching;
    int stage = 0;
    int64_t slices = 1;  ///< of what is stored
    double seconds = 0;
    double work = 0;  ///< without the bubble
  };
  /// By slices of dims, recompute and how gradients are reduced.
  std::map<Computing, std::vector<Computed>> known_computing_;
};

}  // namespace tessera
