// Warp instructions for generated kernels: matmuls on tensor cores, loads of their operands from
// shared memory, and asynchronous copies into it. They need compute capability 8.0. On the host a
// shim computes the same (tests/gpu/cuda_shim_warp.h).
//
// A matmul's operands are spread over the 32 lanes as in the PTX manual under mma.m16n8k16. Lane l
// is in group l / 4, at place l % 4. A register holds two neighbouring elements.
//   A, 16 x 16, registers 0..3: columns 2 place + {0, 1} of row group, then of row group + 8; then
//      the same 8 columns further on.
//   B, 16 x 8, registers 0..1: rows 2 place + {0, 1} of column group; then 8 rows further down.
//   C, 16 x 8, floats 0..3: columns 2 place + {0, 1} of row group; then of row group + 8.
// So a C can be rounded in pairs and is then an A of the next matmul.
#pragma once

#include "kernels/cuda/device.h"

#ifdef __CUDA_ARCH__

namespace tessera::device {

using SharedAddress = unsigned;  ///< bytes
__device__ __forceinline__ SharedAddress shared_address(const void* x) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(x));
}

/// Two numbers rounded to T; the first is the lower half.
template <class T>
__device__ __forceinline__ uint32_t packed(float first, float second) {
  uint32_t both;
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  }
  return both;
}

/// c += A B.
template <class T>
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// Loads four blocks of 8 x 8 elements. Lanes 8 m .. 8 m + 7 give the addresses of the rows of
/// block m, aligned to 16 bytes. Lane l gets elements 2 place + {0, 1} of row group of each block.
__device__ __forceinline__ void load_blocks(SharedAddress row, uint32_t (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
/// The same transposed: rows 2 place + {0, 1} of column group of each block.
__device__ __forceinline__ void load_blocks_transposed(SharedAddress row, uint32_t (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

/// Starts a copy of 4, 8 or 16 aligned bytes into shared memory; copies zeros if not `there`.
template <int kBytes>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool there) {
  const int bytes = there ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :
                 : "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "n"(kBytes),
                   "r"(bytes)
                 : "memory");
  }
}
/// Waits for the copies that this thread started.
__device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// 2^x to within 2 ulp; 0 below 2^-126.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace tessera::device

#endif
