// 8-bit floating types as storage (OCP 8-bit floating point specification, 2023). e4m3 has 4
// exponent bits, 3 fraction bits, a maximum of 448 and no infinity; e5m2 is float16 without the
// last 8 fraction bits. Nothing is rounded here: values must already be representable.
#pragma once

#include "base/float16.h"

namespace tessera {

/// The bits of `x`, a number of the format or NaN. Larger values saturate to the maximum.
TESSERA_HD uint8_t e4m3_bits(float x) {
  const uint32_t bits = bits_as<uint32_t>(x), magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude >> 20) - (120u << 3);
  const uint32_t subnormal = static_cast<uint32_t>(bits_as<float>(magnitude) * 512.0f);  // of 2^-9
  const uint32_t special = magnitude > 0x7f800000u ? 0x7fu : 0x7eu;
  const uint32_t rest = magnitude > 0x43e00000u   ? special
                        : magnitude < 0x3c800000u ? subnormal
                                                  : normal;
  return static_cast<uint8_t>(rest | ((bits >> 24) & 0x80u));
}
TESSERA_HD uint8_t e5m2_bits(float x) { return static_cast<uint8_t>(to_float16(x).bits >> 8); }

TESSERA_HD float from_e4m3(uint8_t x) {
  const uint32_t sign = static_cast<uint32_t>(x & 0x80u) << 24, rest = x & 0x7fu;
  const uint32_t normal = (rest + (120u << 3)) << 20;
  const uint32_t subnormal = bits_as<uint32_t>(static_cast<float>(rest) * 0.001953125f);
  const uint32_t magnitude = rest == 0x7fu ? 0x7fc00000u : rest < 8 ? subnormal : normal;
  return bits_as<float>(magnitude | sign);
}
TESSERA_HD float from_e5m2(uint8_t x) {
  return to_float(Float16{static_cast<uint16_t>(static_cast<uint32_t>(x) << 8)});
}

}  // namespace tessera
