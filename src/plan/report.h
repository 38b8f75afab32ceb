// From the result of a search to the planner's answer.
#pragma once

#include <string>

#include "plan/plan_search.h"
#include "plan/scoped_rules.h"

namespace tessera {

class PlanReport {
 public:
  /// Keeps references to the state of a finished search.
  PlanReport(Candidates& candidates, CandidatePricer& pricer, const MemoryLimit& memory,
             FoundPlans& found, const ScopedRules& scopes, const Stopwatch& clock)
      : candidates_(candidates),
        pricer_(pricer),
        memory_(memory),
        found_(found),
        scopes_(scopes),
        clock_(clock) {}

  /// The answer. Throws a usage error if nothing fits or no layout is legal.
  Plan plan(PlanSearch& search);

 private:
  void require_best(const SearchCounts& counts);
  [[noreturn]] void fail_with_least();
  std::vector<size_t> in_order() const;
  void choose_whole(Plan& plan);
  void add_runners_up(Plan& plan);
  PricedPlan as_run(const PricedCandidate& p);
  void add_usual(const PlanSearch& search, Plan& plan);
  void describe_model(Plan& plan);
  double saved_per_gib(const Plan& plan) const;
  void add_alternatives(Plan& plan);

  Candidates& candidates_;
  CandidatePricer& pricer_;
  const MemoryLimit& memory_;
  FoundPlans& found_;
  const ScopedRules& scopes_;
  const Stopwatch& clock_;
};

}  // namespace tessera
