// The exact optimum under a memory limit, by elimination with lists of partial plans.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/solver/elimination.h"

namespace tessera::solver {

struct PartialPlans {
  bool complete = false;    ///< false: there were more than `labels` of them
  std::vector<int> choice;  ///< empty: nothing feasible costs less than `below`
};

/// The cheapest choice with cost < `below` (scaled, with base) that fits at every point.
/// `elimination` has run with priced_costs(model, prices) and computed its marginals(). They bound
/// the rest of a partial plan and so prune it; the better the prices, the more.
PartialPlans search_partial_plans(const Model& model, const Elimination& elimination,
                                  const std::vector<int64_t>& prices, int64_t below,
                                  int64_t labels);

}  // namespace tessera::solver
