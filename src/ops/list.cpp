// The list of all ops. It is explicit because static libraries drop objects that register
// themselves.
#include "tessera/op.h"

namespace tessera {

// The table rows declare the ops with kernels and the pointwise ops; the others follow.
#define NO_OP
#define KERNEL(id, ops, ...) ops
#define OP(record) extern const Op record;
#include "program/kernel_table.inc"
#undef OP
#define UNARY(id, ...) extern const Op k_##id;
#define BINARY(id, ...) extern const Op k_##id;
#include "program/pointwise_table.inc"
extern const Op kCrossEntropy, kSoftmax, kLogSoftmax, kLayerNorm, kRmsNorm, kIdentity,
    kStopGradient, kCast, kBroadcast, kWhere, kInput, kStored, kConstant, kIota, kRandomBits,
    kDimSize, kPrint, kCheckFinite, kMaskedAttention, kLoop, kLoopCarry, kLoopSlice, kLoopIndex,
    kElu, kSelu, kRagged, kBatchNorm, kClipGradient, kExperts, kExpertsGrad;

const std::vector<const Op*>& all_ops() {
  // clang-format off
  static const std::vector<const Op*> ops = {
#define KERNEL(id, ops, ...) ops
#define OP(record) &record,
#include "program/kernel_table.inc"
#define UNARY(id, ...) &k_##id,
#define BINARY(id, ...) &k_##id,
#include "program/pointwise_table.inc"
      &kCrossEntropy, &kSoftmax, &kLogSoftmax, &kLayerNorm, &kRmsNorm, &kIdentity, &kStopGradient,
      &kCast, &kBroadcast, &kWhere, &kInput, &kStored, &kConstant, &kIota, &kRandomBits, &kDimSize,
      &kPrint, &kCheckFinite, &kMaskedAttention, &kLoop, &kLoopCarry, &kLoopSlice, &kLoopIndex,
      &kElu, &kSelu, &kRagged, &kBatchNorm, &kClipGradient, &kExperts, &kExpertsGrad};
  // clang-format on
  return ops;
}

}  // namespace tessera
