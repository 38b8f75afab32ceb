// Elementary functions for host and device, with the same bits everywhere but for exp of float32,
// which GPUs have an instruction for; a kernel that defines TESSERA_SAME_BITS does without.
//
// float32: branch-free polynomials (Cephes coefficients unless noted), built only from correctly
// rounded IEEE operations in a fixed order. Multiply-adds are fused only where fma() is written:
// compile with -ffp-contract=off (nvcc: -fmad=false). A processor without the instruction gets the
// same bits from the C library, slowly. Errors are at most 3 ulp. Every function is inlined into a
// loop that the compiler vectorizes; hence selects and bit operations instead of branches.
//
// float64: the C library's functions. float64 is used for test oracles and numeric gradients.
#pragma once

#include <math.h>

#include <cmath>
#include <limits>

#include "base/bfloat16.h"

namespace tessera::math {

template <class T>
constexpr T kInf = std::numeric_limits<T>::infinity();
template <class T>
constexpr T kNaN = std::numeric_limits<T>::quiet_NaN();

TESSERA_HD float abs(float x) { return bits_as<float>(bits_as<uint32_t>(x) & 0x7fffffffu); }
TESSERA_HD double abs(double x) { return std::fabs(x); }

/// |x| with the sign of `s`.
TESSERA_HD float with_sign(float x, float s) {
  return bits_as<float>((bits_as<uint32_t>(x) & 0x7fffffffu) |
                        (bits_as<uint32_t>(s) & 0x80000000u));
}

/// a b + c, rounded once.
TESSERA_HD float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
TESSERA_HD double fma(double a, double b, double c) { return ::fma(a, b, c); }

/// The larger; NaN if an operand is.
template <class T>
TESSERA_HD T maximum(T a, T b) {
  return ((a >= b) | (a != a)) ? a : b;
}
template <class T>
TESSERA_HD T minimum(T a, T b) {
  return ((a <= b) | (a != a)) ? a : b;
}
#ifdef __CUDA_ARCH__
TESSERA_HD float maximum(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
TESSERA_HD float minimum(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
#endif

TESSERA_HD float sqrt(float x) { return ::sqrtf(x); }
TESSERA_HD double sqrt(double x) { return std::sqrt(x); }

// ------------------------------------------------------------------------------ rounding to
// integers

/// Nearest integer, ties to even: |x| + 2^23 has no bits left for a fraction.
TESSERA_HD float round(float x) {
  const float nearest = (abs(x) + 8388608.0f) - 8388608.0f;
  return abs(x) < 8388608.0f ? with_sign(nearest, x) : x;
}
TESSERA_HD double round(double x) { return std::nearbyint(x); }

TESSERA_HD float floor(float x) {
  const float nearest = round(x);
  const float below = nearest - 1.0f;
  return with_sign(nearest > x ? below : nearest, x);
}
TESSERA_HD double floor(double x) { return std::floor(x); }

TESSERA_HD float ceil(float x) {
  const float nearest = round(x);
  const float above = nearest + 1.0f;
  return with_sign(nearest < x ? above : nearest, x);
}
TESSERA_HD double ceil(double x) { return std::ceil(x); }

// ------------------------------------------------------------------------------- exponential,
// logarithm

/// 2^k for k in [-126, 127].
TESSERA_HD float power_of_two(int32_t k) {
  return bits_as<float>(static_cast<uint32_t>(k + 127) << 23);
}

/// exp(x) = 2^k * exp(r), |r| <= ln(2)/2: k and exp(r), given fma(x, log2(e), 1.5 * 2^23).
struct ExpParts {
  float mantissa;
  int32_t k;
};
TESSERA_HD ExpParts exp_parts(float x, float shifted) {
  const int32_t k =
      static_cast<int32_t>(bits_as<uint32_t>(shifted) - bits_as<uint32_t>(12582912.0f));
  const float kf = shifted - 12582912.0f;
  const float r = fma(kf, 2.12194440e-4f, fma(kf, -0.693359375f, x));
  float p = 1.9875691500e-4f;
  p = fma(p, r, 1.3981999507e-3f);
  p = fma(p, r, 8.3334519073e-3f);
  p = fma(p, r, 4.1665795894e-2f);
  p = fma(p, r, 1.6666665459e-1f);
  p = fma(p, r, 5.0000001201e-1f);
  return {fma(p, r * r, r) + 1.0f, k};
}
TESSERA_HD float exp_shifted(float x) { return fma(x, 1.44269504088896341f, 12582912.0f); }

#if defined(__CUDA_ARCH__) && !defined(TESSERA_SAME_BITS)
/// 2^(k + r), r by the GPU's own function: x log2(e) is clamped to [-126, 126] and rounded to k,
/// and what is left, however large, is r. Errors are at most 2 ulp.
TESSERA_HD float exp(float x) {
  const float share = __saturatef(fma(x, 1.44269504088896341f / 252, 0.5f));
  const float shifted = fma(share, 252.0f, 12582912.0f + 1);  // low bits: k + 127
  const float k = shifted - (12582912.0f + 127);
  const float r = fma(x, 1.92596299e-8f, fma(x, 1.44269502162933350f, -k));
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(r));
  return y * bits_as<float>(bits_as<uint32_t>(shifted) << 23);
}
#else
/// 2^k in two factors, so that subnormal results are rounded once. For large x, k is clamped to 129
/// (an integer minimum, cheaper than one of floats); the mantissa then overflows.
TESSERA_HD float exp(float x) {
  const int32_t shifted = bits_as<int32_t>(exp_shifted(x));
  const int32_t top = bits_as<int32_t>(12582912.0f + 129.0f);
  const ExpParts e = exp_parts(x, bits_as<float>(shifted < top ? shifted : top));
  const int32_t half = e.k >> 1;
  const float y = e.mantissa * power_of_two(half) * power_of_two(e.k - half);
  return x < -104.0f ? 0.0f : y;
}
#endif
TESSERA_HD double exp(double x) { return std::exp(x); }

/// exp(x) for x <= 0: only normal results, 0 below; without exp's special cases.
#if defined(__CUDA_ARCH__) && !defined(TESSERA_SAME_BITS)
TESSERA_HD float exp_of_negative(float x) { return exp(x); }
#else
TESSERA_HD float exp_of_negative(float x) {
  const ExpParts e = exp_parts(x, exp_shifted(x));
  return x < -87.5f ? 0.0f : e.mantissa * power_of_two(e.k);
}
#endif
TESSERA_HD double exp_of_negative(double x) { return std::exp(x); }

/// log(x) = e ln(2) + log(m), m in [sqrt(1/2), sqrt(2)).
TESSERA_HD float log(float x) {
  const bool subnormal = x < 1.17549435e-38f;
  const float scaled = x * 8388608.0f;
  const uint32_t bits = bits_as<uint32_t>(subnormal ? scaled : x);
  const uint32_t shifted = bits + (0x3f800000u - 0x3f3504f3u);
  const int32_t exponent = static_cast<int32_t>(shifted >> 23) - 127 - (subnormal ? 23 : 0);
  const float m = bits_as<float>((shifted & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  const float e = static_cast<float>(exponent);
  const float z = m * m;
  float p = 7.0376836292e-2f;
  p = fma(p, m, -1.1514610310e-1f);
  p = fma(p, m, 1.1676998740e-1f);
  p = fma(p, m, -1.2420140846e-1f);
  p = fma(p, m, 1.4249322787e-1f);
  p = fma(p, m, -1.6668057665e-1f);
  p = fma(p, m, 2.0000714765e-1f);
  p = fma(p, m, -2.4999993993e-1f);
  p = fma(p, m, 3.3333331174e-1f);
  p = p * m * z;
  p = fma(e, -2.12194440e-4f, p);
  p = fma(-0.5f, z, p);
  float y = fma(e, 0.693359375f, m + p);
  y = x < kInf<float> ? y : x;  // inf, NaN
  y = x == 0.0f ? -kInf<float> : y;
  return x < 0.0f ? kNaN<float> : y;
}
TESSERA_HD double log(double x) { return std::log(x); }

/// log(u) + (x - (u - 1)) / u with u = 1 + x rounded: the second term corrects the rounding of u.
TESSERA_HD float log1p(float x) {
  const float u = 1.0f + x;
  const float lost = (x - (u - 1.0f)) / u;
  const float y =
      log(u) + (math::abs(lost) < 1.0f ? lost : 0.0f);  // 0 / 0 and inf - inf at the ends
  return x == 0.0f ? x : y;
}
TESSERA_HD double log1p(double x) { return std::log1p(x); }

// -------------------------------------------------------------------- hyperbolic tangent and
// relatives

TESSERA_HD float tanh(float x) {
  const float t = abs(x), z = x * x;
  float p = -5.70498872745e-3f;
  p = fma(p, z, 2.06390887954e-2f);
  p = fma(p, z, -5.37397155531e-2f);
  p = fma(p, z, 1.33314422036e-1f);
  p = fma(p, z, -3.33332819422e-1f);
  const float small = fma(p * z, x, x);
  const float large = 1.0f - 2.0f / (exp(2.0f * t) + 1.0f);
  return t < 0.625f ? small : with_sign(large, x);
}
TESSERA_HD double tanh(double x) { return std::tanh(x); }

/// 1 / (1 + exp(-x)), computed from exp(-|x|): no overflow and no cancellation.
template <class T>
TESSERA_HD T sigmoid(T x) {
  const T e = exp(-abs(x));
  return (x >= T(0) ? T(1) : e) / (T(1) + e);
}

template <class T>
TESSERA_HD T softplus(T x) {
  return (x < T(0) ? T(0) : x) + log1p(exp(-abs(x)));
}

/// x sigmoid(x). Below -1e4 the product is -0 and must not become -inf * 0.
template <class T>
TESSERA_HD T silu(T x) {
  return (x < T(-1e4) ? T(-1e4) : x) * sigmoid(x);
}

/// exp(-2u) of the tanh approximation of gelu, u = sqrt(2/pi) (x + 0.044715 x^3), |x| <= kGeluEnd.
/// = 2^v = 2^k 2^r with |r| <= 1/2: 2^r to 9.2e-8 (minimax), 2^k by an addition to the exponent.
TESSERA_HD float exp_of_gelu(float x) {
  const float v = x * fma(-0.10294324f, x * x, -2.30220820f);  // -2u log2(e)
  const float shifted = v + 12582912.0f, r = v - (shifted - 12582912.0f);
  float p = 1.32647272e-3f;
  p = fma(p, r, 9.67151269e-3f);
  p = fma(p, r, 5.55073374e-2f);
  p = fma(p, r, 2.40222421e-1f);
  p = fma(p, r, 6.93146978e-1f);
  p = fma(p, r, 1.0f);
  return bits_as<float>(bits_as<uint32_t>(p) + (bits_as<uint32_t>(shifted) << 23));
}
TESSERA_HD double exp_of_gelu(double x) {
  return std::exp(-x * fma(0.07135481627260025, x * x, 1.5957691216057308));
}

/// Beyond this, s = sigmoid(2u) is 0 or 1 to within 2^-122, and exp(-2u) is still far from
/// overflow.
constexpr float kGeluEnd = 9.9f;

/// The tanh approximation: x/2 (1 + tanh(u)) = x s.
template <class T>
TESSERA_HD T gelu(T x) {
  x = x < T(-kGeluEnd) ? T(-kGeluEnd) : x;
  return x / (T(1) + exp_of_gelu(x > T(kGeluEnd) ? T(kGeluEnd) : x));
}

/// d gelu(x) / dx = s + x s (1 - s) d(2u)/dx, where 1 - s = exp(-2u) s.
template <class T>
TESSERA_HD T gelu_grad(T x) {
  x = x < T(-kGeluEnd) ? T(-kGeluEnd) : x;
  x = x > T(kGeluEnd) ? T(kGeluEnd) : x;
  const T slope = fma(T(0.21406444881780076), x * x, T(1.5957691216057308));
  const T e = exp_of_gelu(x), s = T(1) / (T(1) + e);
  return fma(x * (e * s * s), slope, s);
}

// ------------------------------------------------------------------------------------- sine and
// cosine

/// An angle as quadrant * pi/2 + r, |r| <= pi/4 (plus rounding).
struct Angle {
  float r;
  uint32_t quadrant;
};

/// Arguments up to this size are reduced in float64 with a two-part pi/2; larger ones need 2/pi to
/// many bits.
constexpr float kLargeAngle = 1048576.0f;

TESSERA_HD Angle reduce_angle(float x) {
  const double shift = 6755399441055744.0;  // 1.5 * 2^52
  const double shifted = static_cast<double>(x) * 0.63661977236758134308 + shift;
  const double k = shifted - shift;
  const double r =
      (static_cast<double>(x) - k * 1.57079632673412561417) - k * 6.07710050650619224932e-11;
  const float kf = static_cast<float>(k);  // exact: |k| < 2^20
  return Angle{static_cast<float>(r),
               bits_as<uint32_t>(kf + 12582912.0f) - bits_as<uint32_t>(12582912.0f)};
}

/// The same for any finite |x| >= 1 (Payne and Hanek): the product of the mantissa with the bits of
/// 2/pi that matter modulo 4.
TESSERA_HD Angle reduce_large_angle(float x) {
  constexpr uint32_t kTwoOverPi[8] = {0xA2F9836Eu, 0x4E441529u, 0xFC2757D1u, 0xF534DDC0u,
                                      0xDB629599u, 0x3C439041u, 0xFE5163ABu, 0xDEBBC561u};
  const uint32_t bits = bits_as<uint32_t>(x);
  const int exponent = static_cast<int>((bits >> 23) & 0xffu) - 150;  // x = mantissa * 2^exponent
  const uint64_t mantissa = (bits & 0x007fffffu) | 0x00800000u;
  const int first = exponent > 2 ? exponent - 2 : 0, drop = exponent > 2 ? 0 : 2 - exponent;
  const int word = first / 32, bit = first % 32;
  auto piece = [&](int i) {
    const uint64_t pair = (static_cast<uint64_t>(kTwoOverPi[i]) << 32) | kTwoOverPi[i + 1];
    return (pair << bit) >> 32;
  };
  const uint64_t top = (piece(word) << 32) | piece(word + 1);
  const uint64_t high = top >> drop, low = (((top << 32) | piece(word + 2)) >> drop) & 0xffffffffu;
  const uint64_t product = mantissa * high + ((mantissa * low) >> 32);  // units of 2^-62, modulo 4
  const uint64_t rounded = product + (uint64_t{1} << 61);
  const int64_t fraction = static_cast<int64_t>(product - (rounded & (uint64_t{3} << 62)));
  const double r = static_cast<double>(fraction) * (1.57079632679489661923 / 4611686018427387904.0);
  const uint32_t quadrant = static_cast<uint32_t>(rounded >> 62);
  const bool negative = (bits >> 31) != 0;
  return Angle{static_cast<float>(negative ? -r : r), negative ? 0u - quadrant : quadrant};
}

/// sin(quadrant * pi/2 + r).
TESSERA_HD float sin_of(Angle angle) {
  const float r = angle.r, z = r * r;
  float s = -1.9515295891e-4f;
  s = fma(s, z, 8.3321608736e-3f);
  s = fma(s, z, -1.6666654611e-1f);
  s = fma(s * z, r, r);
  float c = 2.443315711809948e-5f;
  c = fma(c, z, -1.388731625493765e-3f);
  c = fma(c, z, 4.166664568298827e-2f);
  c = fma(-0.5f, z, c * z * z) + 1.0f;
  const uint32_t odd = angle.quadrant & 1u, flip = (angle.quadrant & 2u) << 30;
  return bits_as<float>(bits_as<uint32_t>(odd != 0u ? c : s) ^ flip);
}

/// For |x| <= kLargeAngle or NaN. Loops over larger arguments use sin and cos.
TESSERA_HD float sin_moderate(float x) { return x == 0.0f ? x : sin_of(reduce_angle(x)); }
TESSERA_HD float cos_moderate(float x) {
  const Angle angle = reduce_angle(x);
  return sin_of(Angle{angle.r, angle.quadrant + 1u});
}

TESSERA_HD float sin(float x) {
  if (!(abs(x) > kLargeAngle)) return sin_moderate(x);
  return abs(x) < kInf<float> ? sin_of(reduce_large_angle(x)) : kNaN<float>;
}
TESSERA_HD float cos(float x) {
  if (!(abs(x) > kLargeAngle)) return cos_moderate(x);
  if (!(abs(x) < kInf<float>)) return kNaN<float>;
  const Angle angle = reduce_large_angle(x);
  return sin_of(Angle{angle.r, angle.quadrant + 1u});
}
TESSERA_HD double sin(double x) { return std::sin(x); }
TESSERA_HD double cos(double x) { return std::cos(x); }

}  // namespace tessera::math
