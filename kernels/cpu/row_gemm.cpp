#include "kernels/cpu/row_gemm.h"

#include <algorithm>

#include "base/isa.h"

namespace tessera::cpu {

namespace {
constexpr int64_t kLeast = 32;
constexpr int64_t kBlockRows = 256;  ///< that multiply a panel of B while it is in the first cache
constexpr int64_t kTerms = 512;      ///< of a panel of B
}  // namespace

bool is_for_row_gemm(int64_t m, int64_t n, int64_t k) {
  return cpu_isa() == Isa::avx2 && std::min({m, n, k}) >= kLeast;
}

void row_gemm(const RowGemm& g) {
  for (int64_t row = 0; row < g.m; row += kBlockRows) {
    RowGemm part = g;
    part.m = std::min(kBlockRows, g.m - row);
    part.c = g.c + row;
    for (int64_t term = 0; term < g.k; term += kTerms) {
      const float* a[kBlockRows];
      for (int64_t i = 0; i < part.m; ++i) a[i] = g.a[row + i] + term;
      part.a = a;
      part.b = g.b + term * g.b_row;
      part.k = std::min(kTerms, g.k - term);
      part.overwrite = g.overwrite && term == 0;
      row_gemm_avx2(part);
    }
  }
}

}  // namespace tessera::cpu
