#include "plan/planner.h"

#include <cmath>

#include "base/fail.h"
#include "plan/known_layouts.h"
#include "plan/report.h"

namespace tessera {

Planner::Planner(const PlanModel& model, const Machine& machine, const PlanOptions& options)
    : candidates_(model, machine, options),
      corrections_(candidates_),
      memory_(candidates_, corrections_, options.memory.value_or(machine.usable_memory())),
      pricer_(candidates_, clock_),
      search_(candidates_, pricer_, corrections_, memory_, found_, clock_),
      scopes_(candidates_, pricer_, memory_, found_, clock_),
      finalists_(candidates_, pricer_, memory_, found_, clock_),
      tensors_(candidates_, pricer_, memory_, found_, clock_) {}

Planner::Assignments Planner::on_mesh(const Mesh& mesh) const {
  Assignments assignments{candidates_.space().assignments(mesh), false};
  assignments.known = KnownLayouts(candidates_).among(assignments.all);
  return assignments;
}

Planner::Assignments Planner::on_any_mesh(int64_t devices) const {
  Assignments assignments{candidates_.space().assignments(devices), true};
  const KnownLayouts known(candidates_);
  assignments.known =
      candidates_.space().names_axes() ? known.among(assignments.all) : known.on_any_mesh(devices);
  TESSERA_REQUIRE(
      !assignments.all.empty(),
      "[plan] {} devices have no mesh of up to three axes whose sizes fit the model's dims; "
      "try a number with small factors, such as {}",
      devices, int64_t{1} << static_cast<int>(std::log2(static_cast<double>(devices))));
  return assignments;
}

Plan Planner::best_of(const Assignments& assignments) {
  search_.look_first(assignments.known, assignments.meshes_are_free);
  search_.run(assignments.all, assignments.meshes_are_free);
  search_.try_more_microbatches();
  if (!found_.has_best()) search_.price_least_memory();
  scopes_.run();
  finalists_.run();
  if (candidates_.options().each_tensor) {
    const double before = found_.has_best() ? found_.best_seconds() : 0;
    tensors_.run();
    if (found_.has_best() && found_.best_seconds() < before) finalists_.run();  // by its rules
  }
  Plan plan = PlanReport(candidates_, pricer_, memory_, found_, scopes_, clock_).plan(search_);
  plan.tensors = tensors_.result();
  return plan;
}

std::optional<PricedPlan> Planner::fastest_of(const Assignments& assignments, double below) {
  found_.set_below(below);
  search_.run(assignments.all, assignments.meshes_are_free);
  if (!found_.has_best()) return {};
  if (found_.best_seconds() < below) scopes_.run();
  return found_.best_seconds() < below ? std::optional(found_.best().plan) : std::nullopt;
}

Plan Planner::plan(const Mesh& mesh) { return best_of(on_mesh(mesh)); }
Plan Planner::plan(int64_t devices) { return best_of(on_any_mesh(devices)); }

std::optional<PricedPlan> Planner::fastest(const Mesh& mesh, double below) {
  return fastest_of(on_mesh(mesh), below);
}
std::optional<PricedPlan> Planner::fastest(int64_t devices, double below) {
  return fastest_of(on_any_mesh(devices), below);
}

}  // namespace tessera
