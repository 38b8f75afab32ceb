// Translates a job into the planner's model and options, and a plan back into the job.
#pragma once

#include "cli/commands.h"
#include "cli/plan_cache.h"
#include "tessera/plan.h"

namespace tessera::cli {

/// The job as the planner builds it. The planner chooses what backward recomputes and the number of
/// microbatches, unless a file or --set gives a value other than `auto`.
PlanModel model_of(const Job& job);
/// Options from --plan-time, --memory and the job's rules. Throws usage errors that name the flag.
PlanOptions options_of(const ModelFlags& args, const Job& job);
/// A plan of model_of(job) as changes of the job.
AutoPlan auto_plan_of(const PricedPlan& plan, const Job& job);
/// What the planner may give for the job: axes of its mesh, and the values that it chooses from.
PlanSpace plan_space_of(const Job& job);

}  // namespace tessera::cli
