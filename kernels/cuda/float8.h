// Operands of matmuls in 8 bits, made of wider ones that hold such numbers.
#pragma once

#include "base/float8.h"
#include "kernels/cuda/device.h"

namespace tessera::device {

constexpr int kBytes = 16;  // of one store

/// Elements `stride` apart; kDense: 16-byte loads of neighbours.
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
