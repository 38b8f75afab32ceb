#include "plan/bounds.h"

#include <algorithm>
#include <string>

namespace tessera {

namespace {

// Guesses. kComputing: compute time over the time of the matmuls. kExposed: share of overlappable
// communication that is exposed at least. kHides: share of compute time that can hide
// communication.
constexpr double kComputing = 1.1, kExposed = 0.1, kHides = 0.7;

}  // namespace

double Bounds::of_assignment(size_t assignment) const {
  const Assignment& a = candidates_.assignment(assignment);
  const Estimates& estimates = candidates_.estimates();
  if (!candidates_.has_stages(assignment)) return estimates.least(a, {candidates_.microbatches(0)});
  double least = 1e300;  // with more microbatches stages wait less, but each takes longer
  for (const PipelineSchedule schedule : candidates_.model().schedules) {
    const int64_t chunks = candidates_.chunk_options(assignment, schedule).back();
    for (size_t option = 0; option < candidates_.microbatch_options(); ++option)
      least =
          std::min(least, estimates.least(a, {candidates_.microbatches(option), schedule, chunks}));
  }
  return least;
}

void Bounds::estimate(QueueEntry& entry) const {
  const Candidate& c = entry.candidate;
  const Assignment& a = candidates_.assignment(c);
  const Estimates& estimates = candidates_.estimates(c.recompute_option);
  const Microbatching by = candidates_.microbatching(c);
  entry.bound = estimates.least(a, by);
  const Estimates::Communication sent = estimates.communication(a, c.storage, by);
  entry.guess = kComputing * entry.bound + sent.held_up +
                std::max(kExposed * sent.beside, sent.beside - kHides * entry.bound);
  entry.bound += sent.exposed;
  // If communication overlaps, a step takes at least as long as its busiest set of axes.
  if (candidates_.machine().overlap.possible) entry.bound = std::max(entry.bound, sent.once);
  entry.transient = estimates.memory(a, c.storage, by).transient;
}

Bounds::Computing Bounds::computing(const Candidate& c) const {
  return {candidates_.estimates().cuts(candidates_.assignment(c)), c.recompute_option,
          c.microbatch_option, c.schedule, c.chunks};
}

Bounds::SameAssignment Bounds::same_assignment(const Candidate& c) const {
  return {c.assignment, c.recompute_option, c.microbatch_option, c.schedule, c.chunks};
}

double Bounds::of(const QueueEntry& entry) const {
  const auto known = known_.find(same_assignment(entry.candidate));
  const auto computed = known_computing_.find(computing(entry.candidate));
  return std::max({entry.bound, known == known_.end() ? 0 : known->second,
                   computed == known_computing_.end() ? 0 : computed->second});
}

void Bounds::learn(const Candidate& c, const PricedPlan& plan) {
  const Assignment& a = candidates_.assignment(c);
  // Other stages compute in a bubble, whatever the storage.
  const double least_computing = plan.compute + plan.bubble_compute - plan.update;
  double least = least_computing;
  for (const PlanAxes& axes : plan.by_axes) {
    bool copies = false;
    for (size_t axis = 0; axis < a.picks.size(); ++axis) {
      const std::string in = "+" + axes.axes + "+", name = "+" + a.mesh.axes()[axis].name + "+";
      copies = copies || (in.find(name) != std::string::npos &&
                          candidates_.leaves_copies(a, static_cast<int>(axis)));
    }
    if (!copies) least += axes.exposed;
  }
  const auto keep = [](double& known, double seconds) {
    known = known == 0 ? seconds : std::min(known, seconds);
  };
  keep(known_[same_assignment(c)], least);
  keep(known_computing_[computing(c)], least_computing);
}

}  // namespace tessera
