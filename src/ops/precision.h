// The precision in which composites keep statistics, weights and losses.
#pragma once

#include "tessera/ops.h"

namespace tessera {

/// float32 for anything narrower: sums and exponentials are never kept in 16 bits.
inline Tensor wide(const Tensor& x) { return is_narrow(x.dtype()) ? cast(x, DType::float32) : x; }

/// `x` as `dtype`.
inline Tensor narrow(const Tensor& x, DType dtype) {
  return x.dtype() == dtype ? x : cast(x, dtype);
}

}  // namespace tessera
