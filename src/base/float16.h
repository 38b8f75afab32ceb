// float16 (IEEE binary16) as a storage type: 5 exponent bits, 10 fraction bits, subnormals.
// Arithmetic is done in float32. The formulas have no branches, so that loops vectorize.
#pragma once

#include "base/bfloat16.h"

namespace tessera {

struct Float16 {
  uint16_t bits;
};

#ifdef __CUDA_ARCH__  // one instruction each
TESSERA_HD float to_float(Float16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
TESSERA_HD Float16 to_float16(float x) {
  Float16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
#else
TESSERA_HD float to_float(Float16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t rest = static_cast<uint32_t>(x.bits & 0x7fffu) << 13;
  const uint32_t exponent = rest & 0x0f800000u;
  const uint32_t normal = rest + 0x38000000u;  // 112 more in the exponent
  const uint32_t special = rest + 0x70000000u;
  const uint32_t subnormal =
      bits_as<uint32_t>(bits_as<float>(rest + 0x38800000u) - bits_as<float>(0x38800000u));  // 2^-14
  const uint32_t magnitude = exponent == 0x0f800000u ? special : exponent == 0 ? subnormal : normal;
  return bits_as<float>(magnitude | sign);
}

/// `x` rounded to nearest even: infinity from 65520 on, subnormals below 2^-14. NaN stays NaN.
TESSERA_HD Float16 to_float16(float x) {
  const uint32_t bits = bits_as<uint32_t>(x), magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  // Adding 0.5, whose unit in the last place is that of subnormals, rounds.
  const uint32_t subnormal = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const uint32_t rounded = magnitude >= 0x47800000u  ? special
                           : magnitude < 0x38800000u ? subnormal
                                                     : normal;
  return Float16{static_cast<uint16_t>(rounded | ((bits >> 16) & 0x8000u))};
}
#endif

TESSERA_HD float round_to_float16(float x) { return to_float(to_float16(x)); }

/// narrowed: `x` rounded to the type of the second argument; rounded_as: the same as a float.
TESSERA_HD BFloat16 narrowed(float x, BFloat16) { return to_bfloat16(x); }
TESSERA_HD Float16 narrowed(float x, Float16) { return to_float16(x); }
TESSERA_HD float rounded_as(float x, BFloat16) { return round_to_bfloat16(x); }
TESSERA_HD float rounded_as(float x, Float16) { return round_to_float16(x); }

}  // namespace tessera
