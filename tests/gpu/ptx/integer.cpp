// Arithmetic of integers, with and without carries.
#include <limits>
#include <type_traits>

#include "gpu/ptx/map.h"

namespace tessera::test::ptx {

namespace {

template <class T>
using Unsigned = std::make_unsigned_t<T>;
__extension__ typedef unsigned __int128 Wide128;
__extension__ typedef __int128 SignedWide128;

template <class T>
struct WiderOf;
template <>
struct WiderOf<uint16_t> {
  using type = uint32_t;
};
template <>
struct WiderOf<int16_t> {
  using type = int32_t;
};
template <>
struct WiderOf<uint32_t> {
  using type = uint64_t;
};
template <>
struct WiderOf<int32_t> {
  using type = int64_t;
};
template <>
struct WiderOf<uint64_t> {
  using type = Wide128;
};
template <>
struct WiderOf<int64_t> {
  using type = SignedWide128;
};
template <class T>
using Wider = typename WiderOf<T>::type;

/// Results wrap around.
struct Add {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
  }
};
struct Sub {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
  }
};
struct MulLow {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  }
};
struct MulHigh {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(static_cast<Wider<T>>(a) * static_cast<Wider<T>>(b) >> (8 * sizeof(T)));
  }
};
struct MulWide {
  template <class T>
  static Wider<T> apply(T a, T b) {
    return static_cast<Wider<T>>(a) * static_cast<Wider<T>>(b);
  }
};
template <class Mul>
struct Mad {
  template <class T, class C>
  static C apply(T a, T b, C c) {
    return Add::apply(static_cast<C>(Mul::apply(a, b)), c);
  }
};
/// What a GPU gives for a division by zero is not said.
struct Div {
  template <class T>
  static T apply(T a, T b) {
    if (b == 0) return static_cast<T>(~T{0});
    if (std::is_signed_v<T> && static_cast<int64_t>(b) == -1) return Sub::apply(T{0}, a);
    return static_cast<T>(a / b);
  }
};
struct Rem {
  template <class T>
  static T apply(T a, T b) {
    if (b == 0) return a;
    if (std::is_signed_v<T> && static_cast<int64_t>(b) == -1) return 0;
    return static_cast<T>(a % b);
  }
};
struct Min {
  template <class T>
  static T apply(T a, T b) {
    return b < a ? b : a;
  }
};
struct Max {
  template <class T>
  static T apply(T a, T b) {
    return a < b ? b : a;
  }
};
struct Neg {
  template <class T>
  static T apply(T a) {
    return Sub::apply(T{0}, a);
  }
};
struct Abs {
  template <class T>
  static T apply(T a) {
    return a < 0 ? Neg::apply(a) : a;
  }
};
/// |a - b| + c.
struct Sad {
  template <class T>
  static T apply(T a, T b, T c) {
    return Add::apply(a < b ? Sub::apply(b, a) : Sub::apply(a, b), c);
  }
};

/// Two products of 16 bits of a with 8 bits of b: its lower or upper two bytes.
template <int kFirst>
struct Dp2a {
  static uint32_t apply(uint32_t a, uint32_t b, uint32_t c) {
    return c + (a & 0xffff) * (b >> kFirst & 0xff) + (a >> 16) * (b >> (kFirst + 8) & 0xff);
  }
};
struct Dp4a {
  static uint32_t apply(uint32_t a, uint32_t b, uint32_t c) {
    for (int k = 0; k < 32; k += 8) c += (a >> k & 0xff) * (b >> k & 0xff);
    return c;
  }
};

/// Of add.cc, addc, sub.cc, subc, mad.cc, madc: whether it takes the carry, and whether it leaves
/// one. The extra addend of mad is operand 3.
enum class Kind : uint8_t { add, sub, mad_low, mad_high };
template <Kind kKind, class T, bool kTakes, bool kLeaves>
void with_carry(Warp& w, const Instruction& i) {
  using W = Wider<T>;
  constexpr bool kMad = kKind == Kind::mad_low || kKind == Kind::mad_high;
  const Lanes<T> to = w.lanes<T>(i.r[0]), a = w.lanes<T>(i.r[1]), b = w.lanes<T>(i.r[2]),
                 c = w.lanes<T>(i.r[kMad ? 3 : 2]);
  w.each([&](unsigned lane) {
    const W in = kTakes && w.carry[lane] ? 1 : 0;
    W sum = 0;
    if constexpr (kKind == Kind::add) {
      sum = W{a[lane]} + W{b[lane]} + in;
    } else if constexpr (kKind == Kind::sub) {
      sum = W{a[lane]} - W{b[lane]} - in;
    } else {
      const W product = W{a[lane]} * W{b[lane]};
      sum = W{static_cast<T>(kKind == Kind::mad_low ? product : product >> 8 * sizeof(T))} +
            W{c[lane]} + in;
    }
    if (kLeaves) w.carry[lane] = (sum >> 8 * sizeof(T) & 1) != 0;
    to.set(lane, static_cast<T>(sum));
  });
}
template <Kind kKind, class T>
Form carry_form(bool takes, bool leaves) {
  const Handler run =
      takes ? (leaves ? with_carry<kKind, T, true, true> : with_carry<kKind, T, true, false>)
            : with_carry<kKind, T, false, true>;
  const bool mad = kKind == Kind::mad_low || kKind == Kind::mad_high;
  return {run, std::vector<int>(mad ? 4 : 3, static_cast<int>(sizeof(T)))};
}
template <class T>
std::optional<Form> find_carry(const Opcode& op) {
  const std::string& name = op.parts[0];
  const bool takes = name == "addc" || name == "subc" || name == "madc", leaves = op.has("cc");
  if (!takes && !leaves) return std::nullopt;
  if (name.starts_with("add")) return carry_form<Kind::add, T>(takes, leaves);
  if (name.starts_with("sub")) return carry_form<Kind::sub, T>(takes, leaves);
  if (name.starts_with("mad") && op.has("hi") && op.type()[0] == 'u')
    return carry_form<Kind::mad_high, T>(takes, leaves);
  if (name.starts_with("mad") && op.has("lo")) return carry_form<Kind::mad_low, T>(takes, leaves);
  return std::nullopt;
}

template <class F, class T>
Form two() {
  return form<F, T, T, T>();
}

}  // namespace

std::optional<Form> find_integer(const Opcode& op) {
  const std::string &name = op.parts[0], &type = op.type();
  if (type == "u32" || type == "s32" || type == "b32") {
    if (const auto found = find_carry<uint32_t>(op)) return found;
  } else if (type == "u64" || type == "s64" || type == "b64") {
    if (const auto found = find_carry<uint64_t>(op)) return found;
  }
  if (op.has("sat") || op.has("cc")) return std::nullopt;
  if (name == "dp2a" && type == "u32" && op.type(1) == "u32")
    return op.has("lo") ? form<Dp2a<0>, uint32_t, uint32_t, uint32_t, uint32_t>()
                        : form<Dp2a<16>, uint32_t, uint32_t, uint32_t, uint32_t>();
  if (name == "dp4a" && type == "u32" && op.type(1) == "u32")
    return form<Dp4a, uint32_t, uint32_t, uint32_t, uint32_t>();
  return of_integer(type, [&](auto tag) -> std::optional<Form> {
    using T = typename decltype(tag)::type;
    if (name == "add") return two<Add, T>();
    if (name == "sub") return two<Sub, T>();
    if (name == "mul" && op.has("lo")) return two<MulLow, T>();
    if (name == "mul" && op.has("hi")) return two<MulHigh, T>();
    if (name == "mad" && op.has("lo")) return form<Mad<MulLow>, T, T, T, T>();
    if (name == "mad" && op.has("hi")) return form<Mad<MulHigh>, T, T, T, T>();
    if constexpr (sizeof(T) <= 4) {
      if (name == "mul" && op.has("wide")) return form<MulWide, Wider<T>, T, T>();
      if (name == "mad" && op.has("wide")) return form<Mad<MulWide>, Wider<T>, T, T, Wider<T>>();
    }
    if (name == "div") return two<Div, T>();
    if (name == "rem") return two<Rem, T>();
    if (name == "min") return two<Min, T>();
    if (name == "max") return two<Max, T>();
    if (name == "neg") return form<Neg, T, T>();
    if (name == "abs") return form<Abs, T, T>();
    if (name == "sad") return form<Sad, T, T, T, T>();
    return std::nullopt;
  });
}

}  // namespace tessera::test::ptx
