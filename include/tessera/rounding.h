// Rounding to formats narrower than a tensor's dtype, and products of such numbers.
#pragma once

#include "tessera/graph.h"

namespace tessera {

/// x (float32) with every element rounded to the nearest number of the format, ties to even. Larger
/// magnitudes saturate to the format's maximum; NaN stays NaN. Has no gradient. Throws a usage
/// error for another dtype.
Tensor round_to(Tensor x, Float8 format, Loc at = Loc::current());

/// x (float32) as bfloat16 or float16 with stochastic rounding: each element becomes one of its two
/// neighbours, chosen so that the expected value is x. The random bits are those of
/// random_uniform(): the same under every layout. Elements beyond 1e30 are rounded to nearest. Has
/// no gradient. Throws a usage error for other dtypes.
Tensor stochastic_cast(Tensor x, DType dtype, Loc at = Loc::current());

/// einsum({x, w}, out) with float8 operands. x and w are rounded to e4m3, each scaled by a power of
/// two so that its largest element just fits; in backward the result's gradient is rounded to e5m2
/// in the same way. Sums are float32; the result has the operands' dtype (float32, bfloat16 or
/// float16). On a GPU with float8 matrix units (compute capability 8.9) 8-bit matmuls are used if
/// all sizes are multiples of 16 and it pays. Elsewhere the rounded operands are multiplied in
/// their own dtype: the same values up to rounding of the sums, but no faster. Throws usage errors
/// as einsum does, and for a dim that only one of x, w and out has.
Tensor float8_matmul(Tensor x, Tensor w, const Shape& out, Loc at = Loc::current());

}  // namespace tessera
