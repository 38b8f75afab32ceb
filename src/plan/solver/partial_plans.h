// The exact optimum under a memory limit: elimination with lists of partial plans.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/solver/elimination.h"

namespace tessera::solver {

struct PartialPlans {
  bool complete = false;    ///< false: more than `labels` partial plans were needed
  std::vector<int> choice;  ///< empty: nothing feasible costs less than `below`
};

/// Finds the cheapest choice with cost < `below` (scaled, with base) that fits at every point.
/// `elimination` must have run with priced_costs(model, prices) and computed its marginals(): they
/// bound the rest of a partial plan. The better the prices, the more is pruned.
PartialPlans search_partial_plans(const Model& model, const Elimination& elimination,
                                  const std::vector<int64_t>& prices, int64_t below,
                                  int64_t labels);

}  // namespace tessera::solver
