// The search for the best plan, best first.
//
// The queue holds assignments of mesh axes to dims, and candidates: an assignment with storage,
// recompute and microbatches. Each entry has a bound that it cannot beat, and a guess that decides
// when it is looked at; guesses are corrected by plans of the same kind that were priced. An
// assignment that comes up is replaced by its candidates. A candidate that comes up is priced; if
// it does not fit into memory, it comes back with more microbatches. Entries whose bound is not
// below the best plan's price are dropped. When the queue is empty, the best plan is optimal; when
// the time is up, the least bound in the queue states the gap.
#pragma once

#include <string>
#include <vector>

#include "plan/bounds.h"
#include "plan/found_plans.h"
#include "plan/memory_limit.h"

namespace tessera {

/// What a search did besides finding plans.
struct SearchCounts {
  int64_t illegal = 0;       ///< candidates whose layout is not legal
  int64_t too_large = 0;     ///< assignments of which no candidate may fit
  std::string first_error;   ///< of an illegal one
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

  /// Searches until nothing is left or the time is up. `meshes_are_free`: the assignments are on
  /// meshes of the planner's choice, whose axes may be reordered.
  void run(const std::vector<Assignment>& assignments, bool meshes_are_free);
  /// Where nothing fits: prices the candidates that are estimated to need least memory.
  void price_least_memory();
  /// Seconds that nothing in the queue beats, or the cutoff if that is less.
  double bound() const;
  const SearchCounts& counts() const { return counts_; }

 private:
  void push_assignments(const std::vector<Assignment>& assignments);
  bool is_mirrored(const Assignment& a) const;
  bool take_next(std::vector<QueueEntry>& batch);
  void expand(const QueueEntry& open);
  void push_candidate(const Candidate& c);
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
};

}  // namespace tessera
