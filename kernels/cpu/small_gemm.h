// Products whose operands stay in the caches as they are, such as those of a block of attention's
// rows: too small for what a library does before its first multiplication.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/common/gemm.h"

namespace tessera::cpu {

using kernels::Gemm;

/// True for products that small_gemm() takes, and faster than a library: fewer than 2^20 terms in
/// all, B and C dense along their rows, and an instruction set with fused multiplication.
bool is_small(const Gemm& g);

/// c += a b, or c = a b if `overwrite`. Each element is a sum of one term after the other, whatever
/// the sizes.
void small_gemm(const Gemm& g, const float* a, const float* b, float* c, bool overwrite);

/// The loops of one instruction set.
struct SmallOps {
  const char* name;
  void (*float32)(const Gemm& g, const float* a, const float* b, float* c, bool overwrite);
};

extern const SmallOps kSmallBaseOps;
extern const SmallOps kSmallAvx2Ops;
extern const SmallOps kSmallAvx512Ops;

/// The instruction sets that this processor can run, the best one last.
std::span<const SmallOps* const> usable_small_ops();

}  // namespace tessera::cpu
