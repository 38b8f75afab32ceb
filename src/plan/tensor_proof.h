// The proof over all layouts of single tensors, on the mesh of the best plan.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "plan/found_plans.h"
#include "plan/memory_limit.h"
#include "plan/optimum_rules.h"
#include "plan/tensor_layouts/layout_problem.h"

namespace tessera {

/// Solves the problem of choice of one layer and what stands around it
/// (tensor_layouts/layout_problem.h), and compares the optimum with the best plan. If the optimum
/// costs less, writes it as scoped rules, and adds the plans with them that are faster when they
/// are lowered and simulated.
class TensorProof {
 public:
  /// Keeps references.
  TensorProof(Candidates& candidates, CandidatePricer& pricer, const MemoryLimit& memory,
              FoundPlans& found, const Stopwatch& clock)
      : candidates_(candidates), pricer_(pricer), memory_(memory), found_(found), clock_(clock) {}

  void run();
  const PlanTensors& result() const { return result_; }

 private:
  struct Models {
    const PlanStep *one, *two;  ///< with one and with two layers; equal if there are no more
    int64_t layers = 1;
  };
  std::string unfit(const PricedCandidate& best) const;
  Models models();
  double sum_of(const Models& models, const PricedPlan& plan) const;
  static ByPhase<PlacedTimes> of_all_layers(
      const Models& models, const std::function<ByPhase<PlacedTimes>(const PlanStep&)>& sum);
  ByPhase<PlacedTimes> shared(const Models& models, const LayoutProblem& problem,
                              const PricedPlan& plan) const;
  std::vector<WantedLayout> wanted(const LayoutProblem& problem, const Repeats& repeats,
                                   const std::vector<int>& choice) const;
  void compare(const PricedCandidate& best, const Models& models);
  double scale();
  void try_rules(const PricedCandidate& plain, const std::vector<std::string>& rules);

  Candidates& candidates_;
  CandidatePricer& pricer_;
  const MemoryLimit& memory_;
  FoundPlans& found_;
  const Stopwatch& clock_;
  PlanTensors result_;
};

}  // namespace tessera
