// Arithmetic of float32 and float64. What a GPU approximates (.approx) is computed as well as the
// host can: a kernel may not rely on more.
#include <cfenv>
#include <cmath>
#include <limits>

#include "gpu/ptx/map.h"

namespace tessera::test::ptx {

namespace {

struct Add {
  template <class T>
  static T apply(T a, T b) {
    return a + b;
  }
};
struct Sub {
  template <class T>
  static T apply(T a, T b) {
    return a - b;
  }
};
struct Mul {
  template <class T>
  static T apply(T a, T b) {
    return a * b;
  }
};
struct Div {
  template <class T>
  static T apply(T a, T b) {
    return a / b;
  }
};
struct Fma {
  template <class T>
  static T apply(T a, T b, T c) {
    return std::fma(a, b, c);
  }
};
struct Neg {
  template <class T>
  static T apply(T a) {
    return -a;
  }
};
struct Abs {
  template <class T>
  static T apply(T a) {
    return std::fabs(a);
  }
};
struct Sqrt {
  template <class T>
  static T apply(T a) {
    return std::sqrt(a);
  }
};
struct Reciprocal {
  template <class T>
  static T apply(T a) {
    return T{1} / a;
  }
};
struct ReciprocalSqrt {
  template <class T>
  static T apply(T a) {
    return static_cast<T>(1 / std::sqrt(static_cast<double>(a)));
  }
};
struct Exp2 {
  template <class T>
  static T apply(T a) {
    return std::exp2(a);
  }
};
struct Log2 {
  template <class T>
  static T apply(T a) {
    return std::log2(a);
  }
};
struct Sin {
  template <class T>
  static T apply(T a) {
    return std::sin(a);
  }
};
struct Cos {
  template <class T>
  static T apply(T a) {
    return std::cos(a);
  }
};
struct Tanh {
  template <class T>
  static T apply(T a) {
    return std::tanh(a);
  }
};
/// b with the sign of a.
struct CopySign {
  template <class T>
  static T apply(T a, T b) {
    return std::copysign(b, a);
  }
};

/// -0 is less than 0. A NaN loses, or with kNaN wins.
template <bool kMax, bool kNaN>
struct Extreme {
  template <class T>
  static T apply(T a, T b) {
    if (std::isnan(a) || std::isnan(b)) {
      if (kNaN || (std::isnan(a) && std::isnan(b))) return std::numeric_limits<T>::quiet_NaN();
      return std::isnan(a) ? b : a;
    }
    if (a == 0 && b == 0) return std::signbit(a) == kMax ? b : a;
    return (kMax ? a > b : a < b) ? a : b;
  }
};

/// Subnormal operands and results become zeros.
template <class F>
struct Flushed {
  static float flush(float x) {
    return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0F, x) : x;
  }
  template <class... T>
  static float apply(T... x) {
    return flush(F::apply(flush(x)...));
  }
};
template <class F>
struct Saturated {
  template <class... T>
  static auto apply(T... x) {
    const auto y = F::apply(x...);
    return y > 1 ? decltype(y){1} : y > 0 ? y : decltype(y){0};
  }
};
/// Rounded in another direction than to the nearest. `volatile`: computed between the two calls.
template <class F, int kMode>
struct Directed {
  template <class... T>
  static auto apply(T... x) {
    std::fesetround(kMode);
    volatile auto y = F::apply(keep(x)...);
    std::fesetround(FE_TONEAREST);
    return y;
  }
  template <class T>
  static T keep(T x) {
    volatile T kept = x;
    return kept;
  }
};

template <class F, class T, class... S>
Form rounded(const Opcode& op) {
  if (op.has("rz")) return form<Directed<F, FE_TOWARDZERO>, T, S...>();
  if (op.has("rm")) return form<Directed<F, FE_DOWNWARD>, T, S...>();
  if (op.has("rp")) return form<Directed<F, FE_UPWARD>, T, S...>();
  return form<F, T, S...>();
}
/// With what .ftz, .sat and the direction of rounding say.
template <class F, class T, class... S>
Form with_modifiers(const Opcode& op) {
  if constexpr (sizeof(T) == sizeof(float)) {
    if (op.has("ftz") && op.has("sat")) return form<Saturated<Flushed<F>>, T, S...>();
    if (op.has("ftz")) return rounded<Flushed<F>, T, S...>(op);
  }
  if (op.has("sat")) return form<Saturated<F>, T, S...>();
  return rounded<F, T, S...>(op);
}

/// testp.infinite and the like.
template <class T, class F>
void test(Warp& w, const Instruction& i, F f) {
  const Lanes<T> a = w.lanes<T>(i.r[1]);
  uint32_t result = 0;
  w.each([&](unsigned lane) { result |= uint32_t{f(a[lane])} << lane; });
  w.set_bits(i.r[0], result);
}
template <class T>
std::optional<Form> find_test(const Opcode& op) {
  const std::string& what = op.parts[1];
  Handler run = nullptr;
  if (what == "infinite")
    run = [](Warp& w, const Instruction& i) { test<T>(w, i, [](T x) { return std::isinf(x); }); };
  if (what == "finite")
    run = [](Warp& w, const Instruction& i) {
      test<T>(w, i, [](T x) { return std::isfinite(x); });
    };
  if (what == "number")
    run = [](Warp& w, const Instruction& i) { test<T>(w, i, [](T x) { return !std::isnan(x); }); };
  if (what == "notanumber")
    run = [](Warp& w, const Instruction& i) { test<T>(w, i, [](T x) { return std::isnan(x); }); };
  if (run == nullptr) return std::nullopt;
  return Form{run, {kPredicate, static_cast<int>(sizeof(T))}};
}

template <class T>
std::optional<Form> find_extreme(const Opcode& op) {
  if (op.has("xorsign") || op.has("abs")) return std::nullopt;
  if (op.parts[0] == "min")
    return op.has("NaN") ? with_modifiers<Extreme<false, true>, T, T, T>(op)
                         : with_modifiers<Extreme<false, false>, T, T, T>(op);
  return op.has("NaN") ? with_modifiers<Extreme<true, true>, T, T, T>(op)
                       : with_modifiers<Extreme<true, false>, T, T, T>(op);
}

}  // namespace

std::optional<Form> find_floating(const Opcode& op) {
  const std::string& name = op.parts[0];
  return of_floating(op.type(), [&](auto tag) -> std::optional<Form> {
    using T = typename decltype(tag)::type;
    if (name == "add") return with_modifiers<Add, T, T, T>(op);
    if (name == "sub") return with_modifiers<Sub, T, T, T>(op);
    if (name == "mul") return with_modifiers<Mul, T, T, T>(op);
    if (name == "div") return with_modifiers<Div, T, T, T>(op);
    if (name == "fma" || name == "mad") return with_modifiers<Fma, T, T, T, T>(op);
    if (name == "min" || name == "max") return find_extreme<T>(op);
    if (name == "neg") return with_modifiers<Neg, T, T>(op);
    if (name == "abs") return with_modifiers<Abs, T, T>(op);
    if (name == "sqrt") return with_modifiers<Sqrt, T, T>(op);
    if (name == "rcp") return with_modifiers<Reciprocal, T, T>(op);
    if (name == "rsqrt") return with_modifiers<ReciprocalSqrt, T, T>(op);
    if (name == "ex2") return with_modifiers<Exp2, T, T>(op);
    if (name == "lg2") return with_modifiers<Log2, T, T>(op);
    if (name == "sin") return with_modifiers<Sin, T, T>(op);
    if (name == "cos") return with_modifiers<Cos, T, T>(op);
    if (name == "tanh") return with_modifiers<Tanh, T, T>(op);
    if (name == "copysign") return form<CopySign, T, T, T>();
    if (name == "testp") return find_test<T>(op);
    return std::nullopt;
  });
}

}  // namespace tessera::test::ptx
