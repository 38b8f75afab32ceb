// The least predicted time of a step, over all layouts of its tensors.
#pragma once

#include <vector>

#include "plan/tensor_layouts/layout_problem.h"

namespace tessera {

struct LeastStep {
  /// No layouts take less, with fusion and overlap, if none lets more be fused than one rank does.
  double seconds = 0;
  /// The choice that takes least by the weights of this bound (least_step.cpp).
  std::vector<int> choice = {};
  ByPhase<StepWeights> weights = {};
};

/// What a second of a transfer may count beside a whole second of compute, as it slows compute down
/// (least_step.cpp); 1 if they never overlap.
double least_sent(const Overlap& overlap);

/// The largest bound that weights give. `shared`: seconds of the compute steps that are no kernels,
/// at least. Changes the weights of `problem`. Starts no further solution after `limit` seconds.
LeastStep least_step(LayoutProblem& problem, const Costs& costs, const ByPhase<PlacedTimes>& shared,
                     double limit);

}  // namespace tessera
