// The planner's public functions.
#include "tessera/plan.h"

#include "base/fail.h"
#include "plan/planner.h"

namespace tessera {

double Plan::gap() const { return optimal ? 0 : (table_seconds - bound) / table_seconds; }

CompileOptions PlanModel::options(const Mesh& mesh, const Layout& layout,
                                  const std::vector<FunctionSpec>& functions) const {
  CompileOptions options{mesh, layout, functions};
  options.device = device;
  options.overlap = overlap;
  options.wide_grad_reduce = wide_grad_reduce;
  options.reduce_each_microbatch = reduce_each_microbatch;
  options.offload_state = offload_state;
  options.strict_chunks = strict_chunks;
  return options;
}

Plan plan(const PlanModel& model, const Mesh& mesh, const Machine& machine,
          const PlanOptions& options) {
  return Planner(model, machine, options).plan(mesh);
}

Plan plan(const PlanModel& model, int64_t devices, const Machine& machine,
          const PlanOptions& options) {
  TESSERA_REQUIRE(devices >= 1, "[plan] {} devices; there must be at least one", devices);
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

}  // namespace tessera
