#include "kernels/cpu/thin_gemm.h"

#include <algorithm>

#include "base/isa.h"

namespace tessera::cpu {

namespace {

constexpr int64_t kLeastThinTerms = 16, kLeastThinColumns = 16;

template <class T, class C, class... More>
void multiply(void (*loops)(const Gemm&, const T*, const T*, C*, More...), const Gemm& g,
              const T* a, const T* b, C* c, More... more) {
  if (g.m <= g.n) return loops(g, a, b, c, more...);
  loops(transposed(g), b, a, c, more...);
}

const ThinOps& best() {
  static const ThinOps& ops = *usable_thin_ops().back();
  return ops;
}

}  // namespace

std::span<const ThinOps* const> usable_thin_ops() {
  static constexpr const ThinOps* kAll[] = {&kThinBaseOps, &kThinAvx2Ops, &kThinAvx512Ops};
  return {kAll, static_cast<size_t>(cpu_isa()) + 1};
}

bool is_thin(const Gemm& g) {
  if (g.m > g.n) return is_thin(transposed(g));
  const bool along_sums = g.a_column == 1 && g.b_row == 1,
             along_columns = g.b_column == 1 && g.n >= kLeastThinColumns;
  return g.m <= kFewRows && g.k >= kLeastThinTerms && (along_sums || along_columns);
}

void thin_gemm(const Gemm& g, const float* a, const float* b, float* c, bool overwrite) {
  multiply(best().float32, g, a, b, c, overwrite);
}
void thin_gemm(const Gemm& g, const BFloat16* a, const BFloat16* b, float* c, bool overwrite) {
  multiply(best().bfloat16, g, a, b, c, overwrite);
}
void thin_gemm(const Gemm& g, const BFloat16* a, const BFloat16* b, BFloat16* c) {
  multiply(best().rounded, g, a, b, c);
}

}  // namespace tessera::cpu
