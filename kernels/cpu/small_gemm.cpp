#include "kernels/cpu/small_gemm.h"

#include "base/isa.h"

namespace tessera::cpu {

namespace {
constexpr int64_t kMostTerms = int64_t{1} << 20;  ///< from here on oneDNN is faster
constexpr int64_t kMostUneven = 512;  ///< terms of columns that are copied, as fill no whole vector
}  // namespace

std::span<const SmallOps* const> usable_small_ops() {
  static constexpr const SmallOps* kAll[] = {&kSmallBaseOps, &kSmallAvx2Ops, &kSmallAvx512Ops};
  return {kAll, static_cast<size_t>(cpu_isa()) + 1};
}

bool is_small(const Gemm& g) {
  const bool is_fast = cpu_isa() >= Isa::avx2;
  const bool fits = g.n >= 16 && (g.n % 16 == 0 || g.k <= kMostUneven);
  return is_fast && g.b_column == 1 && g.c_column == 1 && fits && g.m * g.n * g.k < kMostTerms;
}

void small_gemm(const Gemm& g, const float* a, const float* b, float* c, bool overwrite) {
  static const SmallOps& ops = *usable_small_ops().back();
  ops.float32(g, a, b, c, overwrite);
}

}  // namespace tessera::cpu
