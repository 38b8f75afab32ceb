// erf, its inverse, and powers, under the rules of pointwise_math.h.
#pragma once

#include "kernels/common/pointwise_math.h"

namespace tessera::math {

/// erf: an odd polynomial near 0, 1 - exp(polynomial) beyond (coefficients after N. Juffa).
TESSERA_HD float erf(float x) {
  const float z = x * x;
  float near = -5.96761703e-4f;
  near = fma(near, z, 4.99119423e-3f);
  near = fma(near, z, -2.67681349e-2f);
  near = fma(near, z, 1.12819925e-1f);
  near = fma(near, z, -3.76125336e-1f);
  near = fma(near, z, 1.28379166e-1f);
  near = fma(near, x, x);
  const float a = abs(x), t = a > 4.0f ? 4.0f : a, s = t * t;
  float far = fma(-1.72853470e-5f, t, 3.83197126e-4f);
  far = fma(far, s, fma(-3.88396438e-3f, t, 2.42546219e-2f));
  far = fma(far, t, -1.06777877e-1f);
  far = fma(far, t, -6.34846687e-1f);
  far = fma(far, t, -1.28717512e-1f);
  far = fma(far, t, -t);
  far = with_sign(1.0f - exp(far), x);
  return a > 0.927734375f ? far : near;
}
TESSERA_HD double erf(double x) { return std::erf(x); }

/// The inverse of erf (M. Giles, "Approximating the erfinv function", GPU Computing Gems, 2011).
template <class T>
TESSERA_HD T erf_inv_giles(T x) {
  const T w = -log((T(1) - x) * (T(1) + x));
  const T a = w - T(2.5);
  T p = T(2.81022636e-08);
  p = fma(p, a, T(3.43273939e-07));
  p = fma(p, a, T(-3.5233877e-06));
  p = fma(p, a, T(-4.39150654e-06));
  p = fma(p, a, T(0.00021858087));
  p = fma(p, a, T(-0.00125372503));
  p = fma(p, a, T(-0.00417768164));
  p = fma(p, a, T(0.246640727));
  p = fma(p, a, T(1.50140941));
  const T b = sqrt(w) - T(3);
  T q = T(-0.000200214257);
  q = fma(q, b, T(0.000100950558));
  q = fma(q, b, T(0.00134934322));
  q = fma(q, b, T(-0.00367342844));
  q = fma(q, b, T(0.00573950773));
  q = fma(q, b, T(-0.0076224613));
  q = fma(q, b, T(0.00943887047));
  q = fma(q, b, T(1.00167406));
  q = fma(q, b, T(2.83297682));
  const T y = (w < T(5) ? p : q) * x;
  return abs(x) == T(1) ? x * kInf<T> : y;
}

TESSERA_HD float erf_inv(float x) { return erf_inv_giles(x); }

/// Two steps of Halley's method correct the start value; near the ends on erfc, since erf(y) - x
/// would cancel.
TESSERA_HD double erf_inv(double x) {
  const double t = std::fabs(x);
  double y = erf_inv_giles(t);
  if (!(t < 1.0)) return x < 0 ? -y : y;
  for (int i = 0; i < 2; ++i) {
    const double f = t > 0.5 ? (1.0 - t) - std::erfc(y) : std::erf(y) - t;
    const double step = f / (1.1283791670955126 * std::exp(-y * y));
    y -= step / (1.0 + y * step);
  }
  return x < 0 ? -y : y;
}

// -----------------------------------------------------------------------------------------------
// powers

/// log(x) of a positive finite float32, in float64 to about 1e-13: |y log x| <= 104 keeps 40 bits.
TESSERA_HD double log_for_pow(float x) {
  const bool subnormal = x < 1.17549435e-38f;
  const float scaled = x * 8388608.0f;
  const uint32_t bits = bits_as<uint32_t>(subnormal ? scaled : x);
  const uint32_t shifted = bits + (0x3f800000u - 0x3f3504f3u);
  const int32_t exponent = static_cast<int32_t>(shifted >> 23) - 127 - (subnormal ? 23 : 0);
  const double m = static_cast<double>(bits_as<float>((shifted & 0x007fffffu) + 0x3f3504f3u));
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  double p = 2.0 / 17;
  p = p * z + 2.0 / 15;
  p = p * z + 2.0 / 13;
  p = p * z + 2.0 / 11;
  p = p * z + 2.0 / 9;
  p = p * z + 2.0 / 7;
  p = p * z + 2.0 / 5;
  p = p * z + 2.0 / 3;
  p = p * z + 2.0;
  return p * s + static_cast<double>(exponent) * 0.69314718055994530942;
}

/// exp(x) in float64 to about 1e-14. Clamped at +-200, which is outside the range of float32.
TESSERA_HD double exp_for_pow(double x) {
  x = x < -200.0 ? -200.0 : x;
  x = x > 200.0 ? 200.0 : x;
  const double shift = 6755399441055744.0;
  const double shifted = x * 1.44269504088896340736 + shift, k = shifted - shift;
  const double r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10;
  double p = 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = (p * r + 1.0) * r + 1.0;
  const uint64_t e = bits_as<uint64_t>(shifted) - bits_as<uint64_t>(shift) + 1023u;
  return p * bits_as<double>(e << 52);
}

/// std::pow's special cases: pow(x, 0) = pow(1, y) = 1, NaN for a negative base with a fraction.
TESSERA_HD float pow(float x, float y) {
  const float a = abs(x), half = 0.5f * y;
  const bool integer = floor(y) == y, odd = integer & (floor(half) != half);
  double lx = log_for_pow(a);
  lx = a == 0.0f ? -kInf<double> : lx;
  lx = a < kInf<float> ? lx : static_cast<double>(a);
  float r = static_cast<float>(exp_for_pow(static_cast<double>(y) * lx));
  r = a == 1.0f ? (y == y ? 1.0f : y) : r;
  const bool negative = (bits_as<uint32_t>(x) >> 31) != 0u;
  r = (negative & odd) ? -r : r;
  r = ((x < 0.0f) & !integer & (a < kInf<float>)) ? kNaN<float> : r;
  return ((x == 1.0f) | (y == 0.0f)) ? 1.0f : r;
}
TESSERA_HD double pow(double x, double y) { return std::pow(x, y); }

/// Powers of integers, modulo 2^bits; a negative exponent truncates 1 / x^|y| and gives 0 for x =
/// 0.
template <class T>
TESSERA_HD T integer_pow(T x, T y) {
  if (y < T(0)) return x == T(1) ? T(1) : x == T(-1) ? ((y & T(1)) != 0 ? T(-1) : T(1)) : T(0);
  uint64_t result = 1, base = static_cast<uint64_t>(x);
  for (uint64_t e = static_cast<uint64_t>(y); e != 0; e >>= 1) {
    if (e & 1u) result *= base;
    base *= base;
  }
  return static_cast<T>(result);
}
TESSERA_HD int32_t pow(int32_t x, int32_t y) { return integer_pow(x, y); }
TESSERA_HD int64_t pow(int64_t x, int64_t y) { return integer_pow(x, y); }
TESSERA_HD uint8_t pow(uint8_t x, uint8_t y) {
  return static_cast<uint8_t>(integer_pow<int32_t>(x, y));
}

}  // namespace tessera::math
