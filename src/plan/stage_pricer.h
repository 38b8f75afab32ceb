// Prices pipeline parallelism. A step of the model with one and with two layers is lowered and
// split into the cost per microbatch and the cost per step (gradient reduction, update). The
// difference of the two is one layer. Stages are composed of layers and of what comes before the
// first and after the last one. Then the pipeline is simulated.
#pragma once

#include <string>

#include "cost/pipeline_simulator.h"
#include "plan/layer_cut.h"
#include "plan/pricer.h"

namespace tessera {

/// One lowered step, split.
struct StepTimes {
  PricedPlan microbatch;  ///< times of one microbatch
  PricedPlan once;        ///< times per step; all bytes on a rank
  double forward = 0;     ///< seconds of the forward pass of a microbatch
  int64_t kept = 0;       ///< bytes of a microbatch that are kept for its backward pass
};

/// The costs on a stage's devices of a step with one layer and with two.
struct StageTimes {
  StepTimes one, two;
  Mesh mesh;
  std::string layout;
  PlanBuild build;
};

class StagePricer {
 public:
  /// Keeps a reference. Throws a usage error if the model has fewer than two layers.
  explicit StagePricer(Pricer& pricer);

  /// Throws the usage errors of the layout.
  StageTimes times(const Mesh& mesh, const std::string& layout, const PlanBuild& build);
  /// `spans`: also returns the spans of all stages.
  PipelinePlan plan(const StageTimes& times, int64_t stages, int64_t chunks,
                    bool spans = false) const;

 private:
  StepTimes lowered_times(const StageTimes& stage, int64_t layers);
  double transfer(const StageTimes& times, int64_t stages, int64_t& handed) const;
  const PlanStep& few(int64_t layers) const;
  Pricer& pricer_;
  LayerCut cut_;
};

/// The model with its layers unrolled.
PlanModel unrolled(const PlanModel& model);

}  // namespace tessera
