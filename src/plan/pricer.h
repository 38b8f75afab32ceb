// Prices plans by lowering them.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "cost/cost.h"
#include "program/program.h"
#include "tessera/plan.h"

namespace tessera {

/// of_a * a + of_b * b for every figure. Axes that only one of them has count as 0 in the other.
PricedPlan mix(const PricedPlan& a, double of_a, const PricedPlan& b, double of_b);
/// Adds the times of a function to `to`.
void add_function(const Program& program, const Function& f, const Costs& costs, PricedPlan& to);
/// Sets the memory on a rank.
void add_memory(const Program& program, const Graph& graph, PricedPlan& to);

/// PricedPlan::settings of a build. If its layers are a loop, they are dealt to stages.
std::string settings_of(const PlanModel& model, const PlanBuild& build);

/// Caches the graphs that it builds. Several threads may price at once; building is serialized.
class Pricer {
 public:
  Pricer(const PlanModel& model, const Machine& machine) : model_(model), machine_(machine) {}

  const PlanModel& model() const { return model_; }
  const Machine& machine() const { return machine_; }
  const PlanStep& built(const PlanBuild& build);
  /// `chunks`: CompileOptions::chunks.
  Program lowered(const Mesh& mesh, const std::string& layout, const PlanStep& model, bool init,
                  const PlanBuild& build = {}, int chunks = 1) const;
  /// The time and memory of a plan. `whole`: lower the whole model as it will run, otherwise it may
  /// be extrapolated from one and two layers, or priced with its layers as a loop, and no matmul is
  /// split into chunks. Throws the usage errors of the layout. `build.layers` is taken from the
  /// model.
  PricedPlan price(const Mesh& mesh, const std::string& layout, PlanBuild build, bool whole);
  /// The same, extrapolated from one and two layers even if the layers could be a loop: rules that
  /// name tensors of the model may not fit the loop.
  PricedPlan price_layers(const Mesh& mesh, const std::string& layout, PlanBuild build);
  /// True if price() extrapolates from models of one and of two layers.
  bool is_continued() const { return model_.layers > 2 && !model_.is_loop && !is_looped(); }
  /// If true, candidates are priced with the layers as a loop; the winner is lowered unrolled.
  bool is_looped() const { return model_.layers > 2 && !model_.reshard_of_loop.empty(); }
  /// The model with its layers as a loop, which a rule may deal to stages; null if they cannot be
  /// one, or a step has one microbatch.
  std::shared_ptr<const Graph> layers_in_loop();
  /// Dims that only exist with the layers as a loop; the planner leaves them whole, but for the one
  /// that counts layers.
  std::vector<std::string> dims_of_loop();

 private:
  PricedPlan lower_and_price(const Mesh& mesh, const std::string& layout, const PlanBuild& build,
                             bool as_run);
  const PlanModel& model_;
  const Machine& machine_;
  std::mutex mutex_;
  std::map<std::tuple<int64_t, std::string, std::string, int64_t, bool, bool>, PlanStep> built_;
};

}  // namespace tessera
