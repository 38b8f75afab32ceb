// The precision in which composites compute statistics, weights and losses.
#pragma once

#include "tessera/ops.h"

namespace tessera {

/// float32 for anything narrower: sums and exponentials are never kept in 16 bits.
inline Tensor wide(const Tensor& x) { return is_narrow(x.dtype()) ? cast(x, DType::float32) : x; }

/// float32 for float16, whose range a product of two rows may exceed before it is scaled.
inline Tensor with_range(const Tensor& x) {
  return x.dtype() == DType::float16 ? cast(x, DType::float32) : x;
}

/// `x` as `dtype`.
inline Tensor narrow(const Tensor& x, DType dtype) {
  return x.dtype() == dtype ? x : cast(x, dtype);
}

/// einsum({a, b}, out) for operands whose elements are representable in the given float8 formats,
/// so that a device may multiply them in 8 bits. No scaling. Each dim is in two of a, b and out.
Tensor einsum_of_float8(const Tensor& a, const Tensor& b, const Shape& out, Float8 of_a,
                        Float8 of_b, Loc at);

}  // namespace tessera
