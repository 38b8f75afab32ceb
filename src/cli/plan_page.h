// The page of `tessera plan --html`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/placement.h"
#include "tessera/plan.h"
#include "tessera/simulate.h"

namespace tessera::cli {

/// What a plan's page shows; parts come as they are known.
struct PlanFindings {
  std::string model;
  std::string job;  ///< the command that trains it, but for the plan
  Plan plan;
  Machine machine;
  std::optional<PricedPlan> other;  ///< that of --why-not
  std::string why_not;              ///< compare(plan, other)
  std::optional<std::vector<BreakEven>> links;
  std::optional<Placement> placement;  ///< of the best plan's tensors
  std::optional<Simulation> step;      ///< of the best plan
};

std::string plan_page(const PlanFindings& findings);

}  // namespace tessera::cli
