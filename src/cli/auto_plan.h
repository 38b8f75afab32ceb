// What the planner is asked about a job.
#pragma once

#include "cli/commands.h"
#include "tessera/plan.h"

namespace tessera::cli {

/// A job as the planner builds it. What backward recomputes and microbatches are the planner's to
/// choose where neither a file nor --set gives them, or one gives `auto`.
PlanModel model_of(const Job& job);
/// --plan-time, --memory and the job's rules. Throws usage errors that name the flag.
PlanOptions options_of(const Arguments& args, const Job& job);
/// A plan of model_of(job), as what it makes of the job.
AutoPlan auto_plan_of(const PricedPlan& plan, const Job& job);

}  // namespace tessera::cli
