// The scalar formulas of all instructions, for host and device: `formula::Exp::apply(x)` computes
// PointwiseOp::exp. The formulas are in program/pointwise_table.inc; what they call is here. T is
// float (also for bfloat16, whose results the caller rounds), double, int64_t, int32_t or uint8_t
// (also for bool). Comparisons and logical formulas return uint8_t 0 or 1.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/common/philox.h"
#include "kernels/common/pointwise_special.h"

namespace tessera::formula {

/// Integer arithmetic wraps around: it is computed in the unsigned type.
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

/// For floats, negating 0 gives -0; 0 - x would give +0.
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

/// Truncating integer division. Division by 0 gives 0; by -1 it wraps around.
template <class T>
TESSERA_HD T truncated_quotient(T a, T b) {
  return b == T(0) ? T(0) : b == T(-1) ? negative(a) : static_cast<T>(a / b);
}
TESSERA_HD uint8_t truncated_quotient(uint8_t a, uint8_t b) {
  return b == 0 ? uint8_t{0} : static_cast<uint8_t>(a / b);
}

TESSERA_HD float remainder_of(float a, float b) { return ::fmodf(a, b); }
TESSERA_HD double remainder_of(double a, double b) { return ::fmod(a, b); }

/// Truncates for integers.
TESSERA_HD float quotient(float a, float b) { return a / b; }
TESSERA_HD double quotient(double a, double b) { return a / b; }
template <class T>
TESSERA_HD T quotient(T a, T b) {
  return truncated_quotient(a, b);
}

/// a - floor(a / b) b, exact, with the sign of b. A zero divisor gives NaN, or 0 for integers.
template <class T>
TESSERA_HD T floor_remainder(T a, T b) {
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

/// floor(a / b), consistent with floor_remainder. A zero divisor gives a / b, or 0 for integers.
template <class T>
TESSERA_HD T floor_quotient(T a, T b) {
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

// Result types: comparisons and logical formulas return uint8_t, others their operand's type.
#define TESSERA_RESULT_floating T
#define TESSERA_RESULT_number T
#define TESSERA_RESULT_any T
#define TESSERA_RESULT_test uint8_t
#define TESSERA_RESULT_logical uint8_t
#define UNARY(id, Name, dtypes, cost, expression, ...)         \
  struct Name {                                                \
    template <class T>                                         \
    static TESSERA_HD TESSERA_RESULT_##dtypes apply(T x) {     \
      using W [[maybe_unused]] = Wrap<T>;                      \
      return static_cast<TESSERA_RESULT_##dtypes>(expression); \
    }                                                          \
  };
#define BINARY(id, Name, dtypes, cost, expression, ...)         \
  struct Name {                                                 \
    template <class T>                                          \
    static TESSERA_HD TESSERA_RESULT_##dtypes apply(T a, T b) { \
      using W [[maybe_unused]] = Wrap<T>;                       \
      return static_cast<TESSERA_RESULT_##dtypes>(expression);  \
    }                                                           \
  };
#include "program/pointwise_table.inc"
#undef TESSERA_RESULT_floating
#undef TESSERA_RESULT_number
#undef TESSERA_RESULT_any
#undef TESSERA_RESULT_test
#undef TESSERA_RESULT_logical

/// sin and cos without branches, for angles up to math::kLargeAngle.
struct SinModerate {
  template <class T>
  static TESSERA_HD T apply(T x) {
    return math::sin_moderate(x);
  }
};
struct CosModerate {
  template <class T>
  static TESSERA_HD T apply(T x) {
    return math::cos_moderate(x);
  }
};
struct BitOr {
  template <class T>
  static TESSERA_HD T apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct BitAnd {
  template <class T>
  static TESSERA_HD T apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct Where {
  template <class T>
  static TESSERA_HD T apply(uint8_t condition, T a, T b) {
    return condition != 0 ? a : b;
  }
};

/// Conversion of values, the same on every device. Floats to integers truncate towards zero and
/// saturate, NaN becomes 0. Integers wrap. (Bool is computed as NotEqual to 0.)
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

}  // namespace tessera::formula
