// Prices of pipelines. A step of a model with one and with two layers is lowered and taken apart:
// what each microbatch takes, and what comes once, such as the reduction of gradients and the
// update. Their difference is a layer. Stages are put together of layers and of what comes before
// the first and behind the last one; then the pipeline is simulated.
#pragma once

#include <string>

#include "cost/pipeline_schedule.h"
#include "plan/layer_cut.h"
#include "plan/pricer.h"

namespace tessera {

/// One lowered step, taken apart.
struct StepTimes {
  PricedPlan microbatch;  ///< times of one microbatch
  PricedPlan once;        ///< times of what comes once; all bytes of a rank
  double forward = 0;     ///< seconds of the forward pass of a microbatch
  int64_t kept = 0;       ///< bytes of a microbatch that are kept for its backward pass
};

/// What the devices of a stage take for a step with one layer and with two.
struct StageTimes {
  StepTimes one, two;
  Mesh mesh;
  std::string layout;
  PlanBuild build;
};

class StagePricer {
 public:
  /// Keeps a reference. Throws a usage error where the model has no layers to deal.
  explicit StagePricer(Pricer& pricer);

  /// Throws the usage errors of the layout.
  StageTimes times(const Mesh& mesh, const std::string& layout, const PlanBuild& build);
  /// spans: with what each stage does when.
  PipelinePlan plan(const StageTimes& times, int64_t stages, int64_t chunks,
                    bool spans = false) const;

 private:
  StepTimes lowered_times(const StageTimes& stage, int64_t layers);
  double transfer(const StageTimes& times, int64_t stages, int64_t& handed) const;
  const PlanStep& few(int64_t layers) const;
  Pricer& pricer_;
  LayerCut cut_;
};

/// The model as its stages have it: layers one by one.
PlanModel unrolled(const PlanModel& model);

}  // namespace tessera
