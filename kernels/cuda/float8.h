// Conversion of matmul operands to 8 bits, from wider types whose values are 8-bit numbers.
#pragma once

#include "base/float8.h"
#include "kernels/cuda/device.h"

namespace tessera::device {

constexpr int kBytes = 16;  // per store

/// Elements are `stride` apart; kDense: contiguous, loaded 16 bytes at a time.
template <bool kE5m2, bool kDense, class T>
__device__ __forceinline__ Vec<unsigned char, kBytes> to_bytes(const T* from, long long stride) {
  Vec<T, kBytes> wide;
  if constexpr (kDense) {
    wide = load<kBytes>(from);
  } else {
#pragma unroll
    for (int j = 0; j < kBytes; ++j) wide.x[j] = from[j * stride];
  }
  Vec<unsigned char, kBytes> bytes;
#pragma unroll
  for (int j = 0; j < kBytes; ++j) {
    const float x = widen(wide.x[j]);
    bytes.x[j] = kE5m2 ? e5m2_bits(x) : e4m3_bits(x);
  }
  return bytes;
}

}  // namespace tessera::device
