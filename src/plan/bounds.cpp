#include "plan/bounds.h"

#include <algorithm>
#include <limits>
#include <string>

#include "plan/tensor_layouts/least_step.h"

namespace tessera {

namespace {

// Guesses. kComputing: compute time over the time of the matmuls. kExposed: share of overlappable
// communication that is exposed at least. kHides: share of compute time that can hide
// communication. kStaged: time of a pipeline over the bound of its assignment.
constexpr double kComputing = 1.1, kExposed = 0.1, kHides = 0.7, kStaged = 1.3;

/// Of the work of a plan, how much others have at least that cut dims in the same way, in as many
/// microbatches or more: schedules and chunks of stages differ in copies.
constexpr double kAlike = 0.9;

}  // namespace

double Bounds::of_assignment(size_t assignment, size_t recompute_option) const {
  const Assignment& a = candidates_.assignment(assignment);
  const Estimates& estimates = candidates_.estimates(recompute_option);
  if (!candidates_.has_stages(assignment)) return estimates.least(a, {candidates_.microbatches(0)});
  // With more microbatches and chunks stages wait less.
  double least = std::numeric_limits<double>::infinity();
  for (const std::string& schedule : candidates_.model().schedules) {
    const std::vector<int64_t> chunks = candidates_.chunk_options(assignment, schedule);
    if (chunks.empty()) continue;
    least = std::min(
        least, estimates.least_of(a, candidates_.model().microbatches, schedule, chunks.back()));
  }
  return least;
}

double Bounds::key_of_assignment(size_t assignment) const {
  return of_assignment(assignment) * (candidates_.has_stages(assignment) ? kStaged : 1);
}

double Bounds::slows() const {
  const Overlap& overlap = candidates_.machine().overlap;
  return overlap.possible ? least_sent(overlap) : 0;
}

double Bounds::slowed_by(const Candidate& c, double sent) const {
  return candidates_.has_stages(c.assignment) ? 0 : slows() * sent;
}

double Bounds::guess(const Candidate& c, const Microbatching& by) const {
  const Assignment& a = candidates_.assignment(c);
  const Estimates& estimates = candidates_.estimates(c.recompute_option);
  const double least = estimates.least(a, by);
  const Estimates::Communication sent = estimates.communication(a, c.storage, by);
  return kComputing * least + sent.blocking + sent.after +
         std::max(kExposed * sent.overlappable, sent.overlappable - kHides * least);
}

void Bounds::estimate(QueueEntry& entry) const {
  const Candidate& c = entry.candidate;
  const Assignment& a = candidates_.assignment(c);
  const Estimates& estimates = candidates_.estimates(c.recompute_option);
  const Microbatching by = candidates_.microbatching(c);
  const Estimates::Communication sent = estimates.communication(a, c.storage, by);
  const double least = estimates.least(a, by), slowed = slowed_by(c, sent.lower_bound);
  entry.bound = least + std::max(sent.exposed, sent.exposed * (1 - slows()) + slowed);
  entry.slowed = slowed;
  // If communication overlaps, a step takes at least as long as its busiest set of axes.
  if (candidates_.machine().overlap.possible) entry.bound = std::max(entry.bound, sent.lower_bound);
  entry.guess = guess(c, by);
  entry.transient = estimates.memory(a, c.storage, by).transient;
}

Bounds::Computing Bounds::computing(const Candidate& c) const {
  return {candidates_.estimates().cuts(candidates_.assignment(c)), c.recompute_option,
          c.reduce_each};
}

int64_t Bounds::slices(const Candidate& c) const {
  int64_t slices = 1;
  for (const int axis : c.storage.axes)
    slices *= candidates_.assignment(c).mesh.axes()[static_cast<size_t>(axis)].size;
  return slices;
}

double Bounds::computed(const Candidate& c) const {
  const auto known = known_computing_.find(computing(c));
  if (known == known_computing_.end()) return 0;
  const int64_t microbatches = candidates_.microbatches(c.microbatch_option),
                slices = this->slices(c);
  double most = 0;
  for (const Computed& by : known->second) {
    const Microbatching& m = by.microbatching;
    if (c.storage.stage > by.stage || slices > by.slices || microbatches < m.microbatches) continue;
    if (microbatches != m.microbatches && has_caches_) continue;
    const bool alike =
        microbatches == m.microbatches && c.chunks == m.chunks && c.schedule == m.schedule;
    most = std::max(most, alike ? by.seconds : kAlike * by.work);
  }
  return most;
}

double Bounds::least(const Candidate& c) const {
  return std::max(computed(c), candidates_.estimates(c.recompute_option)
                                   .least(candidates_.assignment(c), candidates_.microbatching(c)));
}

Bounds::SameAssignment Bounds::same_assignment(const Candidate& c) const {
  return {c.assignment, c.recompute_option, c.microbatch_option,
          c.schedule,   c.chunks,           c.reduce_each};
}

double Bounds::in_stages(const Candidate& c) const {
  const auto known = known_in_stages_.find({c.assignment, c.recompute_option, c.reduce_each});
  if (known == known_in_stages_.end()) return 0;
  double most = 0;
  for (const auto& [microbatches, seconds] : known->second) {
    const int64_t own = candidates_.microbatches(c.microbatch_option);
    if (microbatches == own || (microbatches < own && !has_caches_))
      most = std::max(most, kAlike * seconds);
  }
  return most;
}

double Bounds::of(const QueueEntry& entry) const {
  const auto known = known_.find(same_assignment(entry.candidate));
  return std::max({entry.bound, in_stages(entry.candidate),
                   known == known_.end() ? 0 : known->second,
                   computed(entry.candidate) + entry.slowed});
}

void Bounds::learn(const Candidate& c, const PricedPlan& plan) {
  const Assignment& a = candidates_.assignment(c);
  // Other stages compute in a bubble, whatever the storage.
  const double least_computing = plan.compute + plan.bubble_compute - plan.update;
  const double work = plan.compute - plan.update;
  double least = least_computing, in_stages = work;
  for (const PlanAxes& axes : plan.by_axes) {
    bool copies = false, stages = false;
    for (size_t axis = 0; axis < a.picks.size(); ++axis) {
      const std::string in = "+" + axes.axes + "+", name = "+" + a.mesh.axes()[axis].name + "+";
      if (in.find(name) == std::string::npos) continue;
      copies = copies || candidates_.leaves_copies(a, static_cast<int>(axis));
      stages = stages || (a.picks[axis] & candidates_.summary().stages) != 0;
    }
    if (copies) continue;
    least += axes.exposed;
    if (!stages) in_stages += axes.exposed;
  }
  const int64_t microbatches = candidates_.microbatches(c.microbatch_option);
  for (const bool each : {false, true}) {
    if (microbatches > 1 && each != c.reduce_each) continue;
    Candidate with = c;
    with.reduce_each = each;
    known_in_stages_[{c.assignment, c.recompute_option, each}].emplace_back(microbatches,
                                                                            in_stages);
    known_computing_[computing(with)].push_back(
        {candidates_.microbatching(c), c.storage.stage, slices(c), least_computing, work});
  }
  double& known = known_[same_assignment(c)];
  known = known == 0 ? least : std::min(known, least);
}

}  // namespace tessera
