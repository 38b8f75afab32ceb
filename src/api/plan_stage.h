// Prices of pipelines. A step of a model with one and with two layers is lowered and taken apart:
// what each microbatch takes, and what comes once, such as exchanges of gradients and the update.
// Their difference is a layer; stages are put together of layers and of what stands before and
// behind them, and played.
#pragma once

#include <string>

#include "api/plan_price.h"
#include "plan/layers.h"
#include "plan/pipeline.h"

namespace tessera {

/// One lowered step.
struct StepParts {
  PricedPlan micro;    ///< times of one microbatch
  PricedPlan rest;     ///< times of what comes once; all bytes of a rank
  double forward = 0;  ///< seconds of `micro`
  int64_t kept = 0;    ///< bytes of a microbatch that wait for its backward pass
};

class StagePricer {
 public:
  /// Keeps a reference. Throws a usage error where the model has no layers to deal.
  explicit StagePricer(Pricer& pricer);

  /// What the devices of a stage take with one layer and with two.
  struct Parts {
    StepParts one, two;
    Mesh mesh;
    std::string layout;
    PlanBuild build;
  };
  /// Throws the usage errors of the layout.
  Parts parts(const Mesh& mesh, const std::string& layout, const PlanBuild& build);
  /// spans: with what each stage does when.
  PipelinePlan plan(const Parts& parts, int64_t stages, int64_t chunks, bool spans = false) const;

 private:
  StepParts lowered_parts(const Parts& of, int64_t layers);
  double transfer(const Parts& parts, int64_t stages, int64_t& handed) const;
  const PlanStep& few(int64_t layers) const;
  Pricer& pricer_;
  LayerCut cut_;
};

/// The model as its stages have it: layers one by one.
PlanModel unrolled(const PlanModel& model);

}  // namespace tessera
