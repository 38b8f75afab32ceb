// bfloat16 as a storage type: the upper half of a float32. Arithmetic is done in float32.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define TESSERA_HD __host__ __device__ __forceinline__
#else
/// Formulas are always inlined, so that each instruction-set clone has its own copy: the linker
/// never uses a copy compiled for AVX-512 in the clone for plain x86-64.
#define TESSERA_HD inline __attribute__((always_inline))
#endif

namespace tessera {

/// The bits of `x` as a To.
template <class To, class From>
TESSERA_HD To bits_as(From x) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, x);
}

struct BFloat16 {
  uint16_t bits;
};

TESSERA_HD float to_float(BFloat16 x) {
  return bits_as<float>(static_cast<uint32_t>(x.bits) << 16);
}

#ifdef __CUDA_ARCH__  // one instruction each
TESSERA_HD BFloat16 to_bfloat16(float x) {
  BFloat16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
/// The upper half of a pair is a float32 when the lower one is 0.
TESSERA_HD float round_to_bfloat16(float x) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(x), "f"(0.0f));
  return bits_as<float>(pair);
}
#else
/// The float32 bits of `x` rounded to bfloat16, nearest even. NaN stays NaN.
TESSERA_HD uint32_t rounded_bits(float x) {
  const uint32_t bits = bits_as<uint32_t>(x);
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return ((bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x00400000u : rounded) & 0xffff0000u;
}

TESSERA_HD float round_to_bfloat16(float x) { return bits_as<float>(rounded_bits(x)); }

TESSERA_HD BFloat16 to_bfloat16(float x) {
  return BFloat16{static_cast<uint16_t>(rounded_bits(x) >> 16)};
}
#endif

}  // namespace tessera
