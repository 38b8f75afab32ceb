// The search for the best plan: best-first branch and bound.
//
// The queue holds assignments of dims to mesh axes, and candidates: an assignment with storage,
// recompute and microbatches. Each entry has a lower bound on its time, and a guess that decides
// when it is looked at. Seeds come first: examples split over all ranks, with parameters whole or
// in slices. Guesses are corrected by priced plans of the same kind. An assignment at the head is
// replaced by its candidates. A candidate at the head is priced; if it does not fit into memory it
// returns with more microbatches. Entries whose bound is not below the best plan's time are
// dropped. When the queue is empty the best plan is optimal; when the time is up, the least bound
// in the queue gives the gap.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "plan/bounds.h"
#include "plan/found_plans.h"
#include "plan/memory_limit.h"

namespace tessera {

/// Statistics of a search.
struct SearchCounts {
  int64_t illegal = 0;       ///< candidates whose layout is not legal
  int64_t too_large = 0;     ///< assignments none of whose candidates fits
  std::string first_error;   ///< of the first illegal candidate
  double first_seconds = 0;  ///< when the first plan that fits was found
};

class PlanSearch {
 public:
  /// Keeps references.
  PlanSearch(Candidates& candidates, CandidatePricer& pricer, Corrections& corrections,
             MemoryLimit& memory, FoundPlans& found, const Stopwatch& clock)
      : candidates_(candidates),
        pricer_(pricer),
        corrections_(corrections),
        memory_(memory),
        found_(found),
        clock_(clock),
        bounds_(candidates) {}

  /// Searches until nothing is left or the time is up. `meshes_are_free`: the planner chose the
  /// meshes and may reorder their axes.
  void run(const std::vector<Assignment>& assignments, bool meshes_are_free);
  /// Prices the best candidates of these assignments, by estimate, before all others. Call it
  /// before run().
  void look_first(const std::vector<Assignment>& known, bool meshes_are_free);
  /// Prices the best plan in more microbatches as long as that is faster: parts may fit into
  /// caches.
  void try_more_microbatches();
  /// If nothing fits: prices the candidates that need the least memory by estimate.
  void price_least_memory();
  /// A lower bound on the seconds of everything in the queue that may fit; at most the cutoff.
  double bound();
  const SearchCounts& counts() const { return counts_; }
  /// The assignments that look_first() was given.
  const std::set<size_t>& known() const { return known_; }

 private:
  std::vector<Candidate> ways_to_run(size_t assignment);
  void push_assignments(const std::vector<Assignment>& assignments);
  bool is_mirrored(const Assignment& a) const;
  bool is_seed(const Assignment& a) const;
  bool is_seed(const Candidate& c) const;
  bool take_next(std::vector<QueueEntry>& batch);
  double bound_of(const QueueEntry& entry);
  double bound_of_open(size_t assignment);
  bool may_fit(Candidate c);
  void expand(const QueueEntry& open);
  bool push_in_microbatches(Candidate c, bool is_seed);
  void expand_stages(size_t assignment);
  bool push_stages(Candidate c);
  void push_candidate(const Candidate& c, bool is_seed = false);
  void push_with_more_microbatches(Candidate c);
  void learn(const QueueEntry& entry, const PricedCandidate& priced);

  Candidates& candidates_;
  CandidatePricer& pricer_;
  Corrections& corrections_;
  MemoryLimit& memory_;
  FoundPlans& found_;
  const Stopwatch& clock_;
  Bounds bounds_;
  PlanQueue queue_;
  bool meshes_are_free_ = false;
  SearchCounts counts_;
  std::set<size_t> known_;
};

}  // namespace tessera
