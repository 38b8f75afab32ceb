// The explicit list of ops. Static libraries drop objects that register themselves, so there is no
// registration.
#include "tessera/op.h"

namespace tessera {

extern const Op kEinsum, kGather, kScatterAdd, kCrossEntropy, kAttention, kSoftmax, kLogSoftmax,
    kLayerNorm, kRmsNorm, kArgmax, kTopK, kCumsum, k_neg, k_abs, k_sign, k_exp, k_log, k_log1p,
    k_sqrt, k_rsqrt, k_reciprocal, k_square, k_sin, k_cos, k_tanh, k_sigmoid, k_softplus, k_relu,
    k_gelu, k_gelu_grad, k_erf, k_erf_inv, k_floor, k_ceil, k_round, k_logical_not, k_is_finite,
    k_silu, k_add, k_sub, k_mul, k_div, k_floor_div, k_mod, k_pow, k_minimum, k_maximum, k_less,
    k_less_equal, k_greater, k_greater_equal, k_equal, k_not_equal, k_logical_and, k_logical_or,
    kIdentity, kStopGradient, kCast, kBroadcast, kWhere, kReduceSum, kReduceMax, kReduceMin,
    kReduceProd, kReduceAny, kReduceAll, kTranspose, kReshape, kInput, kStored, kConstant, kIota,
    kRandomBits, kDimSize, kWindow, kFold, kConv, kPrint, kCheckFinite, kMaskedAttention,
    kAttentionGrad, kAttentionPart, kLoop, kLoopCarry, kLoopSlice, kLoopIndex, kElu, kSelu;

const std::vector<const Op*>& all_ops() {
  // clang-format off
  static const std::vector<const Op*> ops = {
      &kEinsum,      &kGather,    &kScatterAdd,     &kCrossEntropy, &kAttention,  &kSoftmax,
      &kLogSoftmax,  &kLayerNorm, &kRmsNorm,        &kArgmax,       &kTopK,       &kCumsum,
      &k_neg,        &k_abs,      &k_sign,          &k_exp,         &k_log,       &k_log1p,
      &k_sqrt,       &k_rsqrt,    &k_reciprocal,    &k_square,      &k_sin,       &k_cos,
      &k_tanh,       &k_sigmoid,  &k_softplus,      &k_relu,        &k_gelu,      &k_gelu_grad,
      &k_erf,        &k_erf_inv,  &k_floor,         &k_ceil,        &k_round,     &k_logical_not,
      &k_is_finite,  &k_silu,     &k_add,           &k_sub,         &k_mul,       &k_div,
      &k_floor_div,  &k_mod,      &k_pow,           &k_minimum,     &k_maximum,   &k_less,
      &k_less_equal, &k_greater,  &k_greater_equal, &k_equal,       &k_not_equal, &k_logical_and,
      &k_logical_or, &kIdentity,  &kStopGradient,   &kCast,         &kBroadcast,  &kWhere,
      &kReduceSum,   &kReduceMax, &kReduceMin,      &kReduceProd,   &kReduceAny,  &kReduceAll,
      &kTranspose,   &kReshape,   &kInput,          &kStored,       &kConstant,   &kIota,
      &kRandomBits,  &kDimSize,   &kWindow,         &kFold,         &kPrint,      &kCheckFinite,
      &kMaskedAttention, &kAttentionGrad, &kAttentionPart, &kConv, &kLoop, &kLoopCarry, &kLoopSlice, &kLoopIndex, &kElu, &kSelu};
  // clang-format on
  return ops;
}

}  // namespace tessera
