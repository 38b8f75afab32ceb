// What a step computes of what its op counts.
#pragma once

#include "program/program.h"

namespace tessera {

/// Step::flops; of attention without the pairs of queries and keys that causal order and a window
/// hide, which kernels skip. What segments hide is known in the step only.
double flops_done(const Step& step);

}  // namespace tessera
