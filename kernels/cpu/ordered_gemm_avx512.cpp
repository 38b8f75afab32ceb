// Tiles of sums in one order for AVX-512. Standard headers come before the target pragma, so
// that none of their inline functions is compiled for it.
#include <cstdint>
#include <cstring>

#include "kernels/cpu/ordered_gemm.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#pragma GCC target("fma,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#endif
#include "kernels/cpu/fused_multiply_add.h"

namespace tessera::cpu {

namespace {
constexpr int kTileBytes = 64, kTileRows = 12, kShortLeaf = 16;
#if defined(__x86_64__) && defined(__GNUC__)
inline __m512 multiply_add(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
inline __m512d multiply_add(__m512d a, __m512d b, __m512d c) { return _mm512_fmadd_pd(a, b, c); }
#else
template <class Vector>
Vector multiply_add(Vector a, Vector b, Vector c) {
  return a * b + c;
}
#endif
}  // namespace

#include "kernels/cpu/ordered_gemm.inc"

const OrderedOps kOrderedAvx512Ops = ordered_ops("avx512");

}  // namespace tessera::cpu
