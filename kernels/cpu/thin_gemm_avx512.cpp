// The loops of thin products for AVX-512 (F, BW, DQ, VL). Standard headers come before the target
// pragma, so that none of their inline functions is compiled for it.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/common/types.h"
#include "kernels/cpu/thin_gemm.h"

#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("fma,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#endif
#include "kernels/cpu/fused_multiply_add.h"

namespace tessera::cpu {

using namespace kernels;

namespace {
constexpr int kThinVectorBytes = 64;
// Columns of B and rows of A of a block, whose sums are in registers; rows of B that are streams.
constexpr int kThinColumns = 4, kThinRows = 4, kThinDepth = 4;
}  // namespace

#include "kernels/cpu/thin_gemm.inc"

const ThinOps kThinAvx512Ops = {"avx512", product_float, product_bfloat, product_rounded};

}  // namespace tessera::cpu
