// The planner's public functions.
#include "tessera/plan.h"

#include "base/fail.h"
#include "cost/pipeline_turns.h"
#include "plan/planner.h"

namespace tessera {

double Plan::gap() const { return optimal ? 0 : (table_seconds - bound) / table_seconds; }

Plan plan(const PlanModel& model, const Mesh& mesh, const Machine& machine,
          const PlanOptions& options) {
  return Planner(model, machine, options).plan(mesh);
}

Plan plan(const PlanModel& model, int64_t devices, const Machine& machine,
          const PlanOptions& options) {
  require(devices >= 1, "[plan] {} devices; there must be at least one", devices);
  return Planner(model, machine, options).plan(devices);
}

Plan plan(const Graph& graph, const std::vector<FunctionSpec>& functions, const Mesh& mesh,
          const Machine& machine, const PlanOptions& options) {
  const std::shared_ptr<const Graph> unowned(std::shared_ptr<const Graph>(), &graph);
  PlanModel model;
  model.build = [&](const PlanBuild&) { return PlanStep{unowned, functions}; };
  return plan(model, mesh, machine, options);
}

PricedPlan price(const PlanModel& model, const Mesh& mesh, const Layout& layout,
                 const PlanBuild& build, const Machine& machine, bool whole) {
  PricedPlan plan = Pricer(model, machine).price(mesh, layout.to_string(), build, whole);
  plan.settings = settings_of(model, build);
  return plan;
}

std::vector<StageTurn> stage_turns(const PricedPlan& plan) {
  std::vector<StageTurn> all;
  if (plan.stages < 2) return all;
  const Layout layout = Layout::parse(plan.layout);
  for (const LayoutRule& rule : layout.rules())
    if (rule.intervals > 1) return all;
  const PipelinePasses passes{{true, false}, false};
  const PipelineTurns turns =
      pipeline_turns(plan.build.pipeline_schedule, passes, plan.stages, plan.build.microbatches);
  // GPipe's backward pass follows its forward pass; others share turns.
  const int64_t after = plan.build.pipeline_schedule == PipelineSchedule::gpipe ? turns.count : 0;
  for (size_t pass = 0; pass < turns.of.size(); ++pass) {
    for (size_t stage = 0; stage < turns.of[pass].size(); ++stage) {
      const std::vector<int64_t>& of = turns.of[pass][stage];
      for (size_t m = 0; m < of.size(); ++m)
        all.push_back({static_cast<int64_t>(stage), static_cast<int64_t>(pass) * after + of[m],
                       static_cast<int64_t>(m), passes.is_forward[pass]});
    }
  }
  return all;
}

}  // namespace tessera
