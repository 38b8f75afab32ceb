// The loops of small products for AVX2 and FMA. Standard headers come before the target
// pragma, so that none of their inline functions is compiled for it.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/small_gemm.h"

#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("avx2,fma")
#endif
#include "kernels/cpu/fused_multiply_add.h"

namespace tessera::cpu {

namespace {
constexpr int kSmallVectorBytes = 32;
constexpr int kSmallRows = 4;  // whose sums are in registers
constexpr int64_t kSmallTerms = 512;
}  // namespace

#include "kernels/cpu/small_gemm.inc"

const SmallOps kSmallAvx2Ops = {"avx2", product};

}  // namespace tessera::cpu
