// The loops of small products for AVX-512 (F, BW, DQ, VL). Standard headers come before the target
// pragma, so that none of their inline functions is compiled for it.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/small_gemm.h"

#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("fma,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#endif
#include "kernels/cpu/fused_multiply_add.h"

namespace tessera::cpu {

namespace {
constexpr int kSmallVectorBytes = 64;
constexpr int kSmallRows = 8;  // whose sums are in registers
constexpr int64_t kSmallTerms = 512;
}  // namespace

#include "kernels/cpu/small_gemm.inc"

const SmallOps kSmallAvx512Ops = {"avx512", product};

}  // namespace tessera::cpu
