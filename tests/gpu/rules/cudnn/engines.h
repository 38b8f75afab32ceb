// Engines for a graph, plans, and their execution.
#pragma once

#include "gpu/rules/cudnn/descriptors.h"

namespace tessera::test::rules::cudnn {

/// Finalizes a heuristic: its engines, best first. A caller that takes the first one fails: one
/// adds in no fixed order, one does not compile, and one needs more workspace than there is.
cudnnStatus_t find_engines(Descriptor& heuristic);
/// Finalizes a plan.
cudnnStatus_t compile(Descriptor& plan);
cudnnStatus_t execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                      cudnnBackendDescriptor_t pack);

}  // namespace tessera::test::rules::cudnn
