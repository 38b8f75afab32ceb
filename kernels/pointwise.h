// Every scalar formula of the pointwise codes, once, for host and device: `formula::Exp::apply(x)`
// is what Code::exp computes. T is float (also for bfloat16, whose results the caller rounds),
// double, int64_t, int32_t or uint8_t (also for bool); comparisons and logical formulas give
// uint8_t 0 or 1.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/philox.h"
#include "kernels/pointwise_special.h"

namespace tessera::formula {

/// Integer arithmetic wraps around: it is done on the unsigned type.
template <class T, class = void>
struct WrapOf {
  using type = T;
};
template <>
struct WrapOf<int32_t> {
  using type = uint32_t;
};
template <>
struct WrapOf<int64_t> {
  using type = uint64_t;
};
template <class T>
using Wrap = typename WrapOf<T>::type;

#define TESSERA_UNARY(Name, expression)   \
  struct Name {                           \
    template <class T>                    \
    static TESSERA_HD T apply(T x) {      \
      using W [[maybe_unused]] = Wrap<T>; \
      return static_cast<T>(expression);  \
    }                                     \
  };
#define TESSERA_BINARY(Name, expression)  \
  struct Name {                           \
    template <class T>                    \
    static TESSERA_HD T apply(T a, T b) { \
      using W [[maybe_unused]] = Wrap<T>; \
      return static_cast<T>(expression);  \
    }                                     \
  };
#define TESSERA_TEST(Name, expression)          \
  struct Name {                                 \
    template <class T>                          \
    static TESSERA_HD uint8_t apply(T a, T b) { \
      return static_cast<uint8_t>(expression);  \
    }                                           \
  };

/// A zero of integers, -0 for floats is kept: 0 - x would turn it into +0.
TESSERA_HD float negative(float x) { return -x; }
TESSERA_HD double negative(double x) { return -x; }
template <class T>
TESSERA_HD T negative(T x) {
  return static_cast<T>(Wrap<T>(0) - static_cast<Wrap<T>>(x));
}

TESSERA_HD float magnitude(float x) { return math::abs(x); }
TESSERA_HD double magnitude(double x) { return math::abs(x); }
template <class T>
TESSERA_HD T magnitude(T x) {
  return x < T(0) ? negative(x) : x;
}

TESSERA_UNARY(Neg, negative(x))
TESSERA_UNARY(Abs, magnitude(x))
TESSERA_UNARY(Sign, x > T(0) ? T(1) : x < T(0) ? T(-1) : x)
TESSERA_UNARY(Square, static_cast<W>(x) * static_cast<W>(x))
TESSERA_UNARY(Exp, math::exp(x))
TESSERA_UNARY(Log, math::log(x))
TESSERA_UNARY(Log1p, math::log1p(x))
TESSERA_UNARY(Sqrt, math::sqrt(x))
TESSERA_UNARY(Rsqrt, T(1) / math::sqrt(x))
TESSERA_UNARY(Reciprocal, T(1) / x)
TESSERA_UNARY(Sin, math::sin(x))
TESSERA_UNARY(Cos, math::cos(x))
TESSERA_UNARY(SinModerate, math::sin_moderate(x))
TESSERA_UNARY(CosModerate, math::cos_moderate(x))
TESSERA_UNARY(Tanh, math::tanh(x))
TESSERA_UNARY(Sigmoid, math::sigmoid(x))
TESSERA_UNARY(Softplus, math::softplus(x))
TESSERA_UNARY(Relu, x < T(0) ? T(0) : x)
TESSERA_UNARY(Gelu, math::gelu(x))
TESSERA_UNARY(GeluGrad, math::gelu_grad(x))
TESSERA_UNARY(Silu, math::silu(x))
TESSERA_UNARY(Erf, math::erf(x))
TESSERA_UNARY(ErfInv, math::erf_inv(x))
TESSERA_UNARY(Floor, math::floor(x))
TESSERA_UNARY(Ceil, math::ceil(x))
TESSERA_UNARY(Round, math::round(x))

TESSERA_BINARY(Add, static_cast<W>(a) + static_cast<W>(b))
TESSERA_BINARY(Sub, static_cast<W>(a) - static_cast<W>(b))
TESSERA_BINARY(Mul, static_cast<W>(a) * static_cast<W>(b))
TESSERA_BINARY(Pow, math::pow(a, b))
/// NaN in either operand is the result.
TESSERA_BINARY(Maximum, ((a >= b) | (a != a)) ? a : b)
TESSERA_BINARY(Minimum, ((a <= b) | (a != a)) ? a : b)
TESSERA_BINARY(BitOr, a | b)
TESSERA_BINARY(BitAnd, a& b)

/// Truncating division of integers; by zero it is 0, by -1 it wraps around.
template <class T>
TESSERA_HD T truncated_quotient(T a, T b) {
  return b == T(0) ? T(0) : b == T(-1) ? negative(a) : static_cast<T>(a / b);
}
TESSERA_HD uint8_t truncated_quotient(uint8_t a, uint8_t b) {
  return b == 0 ? uint8_t{0} : static_cast<uint8_t>(a / b);
}

TESSERA_HD float remainder_of(float a, float b) { return ::fmodf(a, b); }
TESSERA_HD double remainder_of(double a, double b) { return ::fmod(a, b); }

struct Div {
  static TESSERA_HD float apply(float a, float b) { return a / b; }
  static TESSERA_HD double apply(double a, double b) { return a / b; }
  template <class T>
  static TESSERA_HD T apply(T a, T b) {
    return truncated_quotient(a, b);
  }
};

/// a - floor(a / b) b, with the sign of b: exact. A zero divisor gives NaN, or 0 for integers.
struct Mod {
  template <class T>
  static TESSERA_HD T apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      const T r = remainder_of(a, b);
      return (r != T(0) && (r < T(0)) != (b < T(0))) ? r + b : r;
    } else {
      const Wrap<T> q = static_cast<Wrap<T>>(truncated_quotient(a, b));
      const T r =
          b == T(0) ? T(0) : static_cast<T>(static_cast<Wrap<T>>(a) - q * static_cast<Wrap<T>>(b));
      return (r != T(0) && (r < T(0)) != (b < T(0))) ? static_cast<T>(r + b) : r;
    }
  }
};

/// floor(a / b), consistent with Mod. A zero divisor gives a / b, or 0 for integers.
struct FloorDiv {
  template <class T>
  static TESSERA_HD T apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (b == T(0)) return a / b;
      const T r = remainder_of(a, b);
      const T exact = (a - r) / b - T(r != T(0) && (r < T(0)) != (b < T(0)));
      return math::round(exact);
    } else {
      const T q = truncated_quotient(a, b);
      const bool inexact =
          b != T(0) && static_cast<T>(static_cast<Wrap<T>>(q) * static_cast<Wrap<T>>(b)) != a;
      return inexact && (a < T(0)) != (b < T(0)) ? static_cast<T>(q - 1) : q;
    }
  }
};

TESSERA_TEST(Less, a < b)
TESSERA_TEST(LessEqual, a <= b)
TESSERA_TEST(Greater, a > b)
TESSERA_TEST(GreaterEqual, a >= b)
TESSERA_TEST(Equal, a == b)
TESSERA_TEST(NotEqual, a != b)
TESSERA_TEST(LogicalAnd, (a != T(0)) & (b != T(0)))
TESSERA_TEST(LogicalOr, (a != T(0)) | (b != T(0)))

struct LogicalNot {
  template <class T>
  static TESSERA_HD uint8_t apply(T x) {
    return static_cast<uint8_t>(x == T(0));
  }
};
struct IsFinite {
  template <class T>
  static TESSERA_HD uint8_t apply(T x) {
    return static_cast<uint8_t>(x - x == T(0));
  }
};
struct Where {
  template <class T>
  static TESSERA_HD T apply(uint8_t condition, T a, T b) {
    return condition != 0 ? a : b;
  }
};

/// Conversion of values. Floats truncate towards zero and saturate, NaN becomes 0: the same on
/// every device. Integers wrap. (To bool: NotEqual to 0.)
template <class To, class From>
TESSERA_HD To cast(From x) {
  if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    using Wide = std::conditional_t<sizeof(To) == 8, int64_t, int32_t>;
    constexpr From kLow = static_cast<From>(std::numeric_limits<To>::min());
    constexpr From kHigh =
        static_cast<From>(std::numeric_limits<To>::max());  // may round up to 2^bits
    const bool high = x >= kHigh, inside = (x > kLow) & !high;
    const Wide t = static_cast<Wide>(inside ? x : From(0));
    const Wide edge =
        high ? static_cast<Wide>(std::numeric_limits<To>::max())
             : (x <= kLow ? static_cast<Wide>(std::numeric_limits<To>::min()) : Wide(0));
    return static_cast<To>(inside ? t : edge);
  } else {
    return static_cast<To>(x);
  }
}

#undef TESSERA_UNARY
#undef TESSERA_BINARY
#undef TESSERA_TEST

}  // namespace tessera::formula
