// The pages of commands with --html.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/explain.h"
#include "tessera/machine.h"
#include "tessera/placement.h"
#include "tessera/plan.h"
#include "tessera/simulate.h"

namespace tessera::cli {

/// `notes`: about the time of a step, a paragraph each. `simulation` and `machine` are null where
/// no times are predicted. `files`: source_files() of the graph.
std::string explain_page(const std::string& title, const std::string& subtitle,
                         const Explanation& explanation, const std::vector<std::string>& notes,
                         const Placement& placement, const Simulation* simulation,
                         const Machine* machine, const std::map<std::string, std::string>& files);

/// A profile that calibrate measured, which is kept at `path`.
std::string machine_page(const Machine& machine, const std::string& path);

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
