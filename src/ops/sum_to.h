// Sums to a shape, for gradients of broadcast operands.
#pragma once

#include "tessera/ops.h"

namespace tessera {

/// g summed over the dims that `shape` lacks, broadcast along those that g lacks, in the order of
/// `shape`.
Tensor sum_to(Tensor g, const Shape& shape);

/// einsum() that also sums dims which one operand has alone, as the gradient of a broadcast does.
Tensor sum_of_products(const std::vector<Tensor>& xs, const Shape& out, Loc at = Loc::current());

}  // namespace tessera
