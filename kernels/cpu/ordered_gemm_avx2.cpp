// Tiles of sums in one order for AVX2 and FMA. Standard headers come before the target pragma, so
// that none of their inline functions is compiled for it.
#include <cstdint>
#include <cstring>

#include "kernels/cpu/ordered_gemm.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#pragma GCC target("avx2,fma")
#endif
#include "kernels/cpu/fused_multiply_add.h"

namespace tessera::cpu {

namespace {
constexpr int kTileBytes = 32, kTileRows = 6, kShortLeaf = 8;
#if defined(__x86_64__) && defined(__GNUC__)
inline __m256 multiply_add(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
inline __m256d multiply_add(__m256d a, __m256d b, __m256d c) { return _mm256_fmadd_pd(a, b, c); }
#else
template <class Vector>
Vector multiply_add(Vector a, Vector b, Vector c) {
  return a * b + c;
}
#endif
}  // namespace

#include "kernels/cpu/ordered_gemm.inc"

const OrderedOps kOrderedAvx2Ops = ordered_ops("avx2");

}  // namespace tessera::cpu
