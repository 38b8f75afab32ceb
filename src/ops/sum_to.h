// Summing a gradient back to the shape of a broadcast operand.
#pragma once

#include "tessera/ops.h"

namespace tessera {

/// g summed over the dims that `shape` lacks, broadcast along those that g lacks, in the order of
/// `shape`.
Tensor sum_to(Tensor g, const Shape& shape);

}  // namespace tessera
