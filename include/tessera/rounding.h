// Numbers rounded to a narrower format than their tensor's dtype, and products of such numbers.
#pragma once

#include "tessera/graph.h"

namespace tessera {

/// x, float32, with every element the nearest number of the format, ties to even; what is beyond
/// the greatest becomes that, NaN stays. Has no gradient. Throws a usage error for another dtype.
Tensor round_to(Tensor x, Float8 format, Loc at = Loc::current());

/// x, float32, as bfloat16 or float16, each element rounded to one of its two neighbours: to the
/// upper one with the probability that makes x the mean. The random bits are those of
/// random_uniform(): the same under every layout. Elements beyond 1e30 are rounded to nearest. Has
/// no gradient. Throws a usage error for other dtypes.
Tensor stochastic_cast(Tensor x, DType dtype, Loc at = Loc::current());

/// einsum({x, w}, out) of operands in e4m3, each scaled by a power of two so that its
/// greatest element just fits; in the gradients, that of the result is in e5m2, scaled
/// likewise. Sums are float32, the result has the operands' dtype. A GPU that has such products
/// (compute capability 8.9) multiplies bytes where all sizes are multiples of 16 and it pays;
/// elsewhere they are computed in the operands' dtype: the numbers are those of float8, to the
/// rounding of sums; the time is not. Throws usage errors as einsum does, and for
/// a dim that only one of the three has.
Tensor float8_product(Tensor x, Tensor w, const Shape& out, Loc at = Loc::current());

}  // namespace tessera
