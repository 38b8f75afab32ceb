// The planner: a search, scoped rules for its best plans, and the report.
#pragma once

#include <optional>
#include <vector>

#include "plan/plan_search.h"
#include "plan/scoped_rules.h"
#include "plan/tensor_proof.h"
#include "plan/whole_program_check.h"

namespace tessera {

/// An object plans once: call one of its four functions.
class Planner {
 public:
  /// Keeps references.
  Planner(const PlanModel& model, const Machine& machine, const PlanOptions& options);

  Plan plan(const Mesh& mesh);
  Plan plan(int64_t devices);
  /// The best plan, as the search priced it, if it takes less than `below` seconds.
  std::optional<PricedPlan> fastest(const Mesh& mesh, double below);
  std::optional<PricedPlan> fastest(int64_t devices, double below);
  /// True if nothing that could be faster is left.
  bool is_complete() { return search_.bound() >= found_.cutoff(); }

 private:
  /// The assignments to search, and whether the planner chose their meshes.
  struct Assignments {
    std::vector<Assignment> all;
    bool meshes_are_free = false;
    std::vector<Assignment> known = {};  ///< to look at first
  };
  Assignments on_mesh(const Mesh& mesh) const;
  Assignments on_any_mesh(int64_t devices) const;
  Plan best_of(const Assignments& assignments);
  std::optional<PricedPlan> fastest_of(const Assignments& assignments, double below);

  Candidates candidates_;
  Stopwatch clock_;
  Corrections corrections_;
  MemoryLimit memory_;
  CandidatePricer pricer_;
  FoundPlans found_;
  PlanSearch search_;
  ScopedRules scopes_;
  WholeProgramCheck finalists_;
  TensorProof tensors_;
};

}  // namespace tessera
