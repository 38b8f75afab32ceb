// What a step computes of what its op counts.
#pragma once

#include "program/program.h"
#include "tessera/mesh.h"

namespace tessera {

/// Step::flops; of attention without the pairs of queries and keys that causal order and a window
/// hide, which kernels skip, on the rank of the mesh that has most left: all wait for it. What
/// segments hide is known in the step only.
double flops_done(const Step& step, const Mesh& mesh);

}  // namespace tessera
