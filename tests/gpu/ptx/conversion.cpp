// cvt: from any type to any other.
#include <cfenv>
#include <cmath>
#include <limits>

#include "base/bfloat16.h"
#include "base/float16.h"
#include "gpu/ptx/map.h"
#include "gpu/ptx/syntax.h"

namespace tessera::test::ptx {

namespace {

enum class Rounding : uint8_t { nearest, zero, down, up };

Rounding rounding_of(const Opcode& op) {
  if (op.has("rz") || op.has("rzi")) return Rounding::zero;
  if (op.has("rm") || op.has("rmi")) return Rounding::down;
  if (op.has("rp") || op.has("rpi")) return Rounding::up;
  return Rounding::nearest;
}

template <class T>
T to_whole(T x, Rounding r) {
  switch (r) {
    case Rounding::nearest:
      return std::nearbyint(x);
    case Rounding::zero:
      return std::trunc(x);
    case Rounding::down:
      return std::floor(x);
    case Rounding::up:
      return std::ceil(x);
  }
  return x;
}

/// Clamped to what there is. A NaN is 0, or of 64 bits the highest bit alone.
template <class I, class F>
I to_integer(F x) {
  using Limits = std::numeric_limits<I>;
  if (std::isnan(x)) return sizeof(I) < 8 ? I{0} : static_cast<I>(uint64_t{1} << 63);
  if (x <= static_cast<F>(Limits::min())) return Limits::min();
  if (x >= static_cast<F>(Limits::max())) return Limits::max();
  return static_cast<I>(x);
}

/// An instruction's number: the rounding, and 4 where it saturates.
Rounding rounding(const Instruction& i) { return static_cast<Rounding>(i.number & 3); }
bool saturates(const Instruction& i) { return (i.number & 4) != 0; }

template <class To, class From>
To within_rounding(From x, Rounding r) {
  constexpr int kModes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
  if (r == Rounding::nearest) return static_cast<To>(x);
  std::fesetround(kModes[static_cast<int>(r)]);
  volatile From kept = x;
  volatile To y = static_cast<To>(kept);
  std::fesetround(FE_TONEAREST);
  return y;
}

template <class D, class S>
D converted(S x, const Instruction& i) {
  constexpr bool kToWhole = std::numeric_limits<D>::is_integer,
                 kFromWhole = std::numeric_limits<S>::is_integer;
  if constexpr (kToWhole && kFromWhole) {
    if (!saturates(i)) return static_cast<D>(x);
    if (x < 0 && !std::numeric_limits<D>::is_signed) return 0;
    const auto most = static_cast<uint64_t>(std::numeric_limits<D>::max());
    if (x > 0 && static_cast<uint64_t>(x) > most) return std::numeric_limits<D>::max();
    const auto least = static_cast<int64_t>(std::numeric_limits<D>::min());
    if (x < 0 && static_cast<int64_t>(x) < least) return std::numeric_limits<D>::min();
    return static_cast<D>(x);
  } else if constexpr (kToWhole) {
    return to_integer<D>(to_whole(x, rounding(i)));
  } else if constexpr (kFromWhole) {
    return within_rounding<D>(x, rounding(i));
  } else if constexpr (std::is_same_v<D, S>) {
    const D y = (i.number & 8) != 0 ? to_whole(x, rounding(i)) : x;
    return !saturates(i) ? y : y > 1 ? D{1} : y > 0 ? y : D{0};
  } else {
    return within_rounding<D>(x, rounding(i));
  }
}

template <class D, class S>
void convert(Warp& w, const Instruction& i) {
  const Lanes<S> from = w.lanes_of_any<S>(i.r[1]);
  w.each([&](unsigned lane) { w.set_extended(i.r[0], lane, converted<D>(from[lane], i)); });
}

template <class F>
Handler with_type(const std::string& type, F f) {
  if (type == "u8" || type == "b8") return f(Tag<uint8_t>{});
  if (type == "s8") return f(Tag<int8_t>{});
  if (type == "u16" || type == "b16") return f(Tag<uint16_t>{});
  if (type == "s16") return f(Tag<int16_t>{});
  if (type == "u32" || type == "b32") return f(Tag<uint32_t>{});
  if (type == "s32") return f(Tag<int32_t>{});
  if (type == "u64" || type == "b64") return f(Tag<uint64_t>{});
  if (type == "s64") return f(Tag<int64_t>{});
  if (type == "f32") return f(Tag<float>{});
  if (type == "f64") return f(Tag<double>{});
  return nullptr;
}

template <class Half>
void widen(Warp& w, const Instruction& i) {
  const auto to = w.lanes<float>(i.r[0]);
  const auto from = w.lanes<uint16_t>(i.r[1]);
  w.each([&](unsigned lane) { to.set(lane, to_float(Half{from[lane]})); });
}
template <class Half>
void narrow(Warp& w, const Instruction& i) {
  const auto to = w.lanes<uint16_t>(i.r[0]);
  const auto from = w.lanes<float>(i.r[1]);
  w.each([&](unsigned lane) { to.set(lane, narrowed(from[lane], Half{}).bits); });
}
/// cvt.rn.bf16x2.f32 d, a, b: a is the upper half.
template <class Half>
void narrow_two(Warp& w, const Instruction& i) {
  const auto to = w.lanes<uint32_t>(i.r[0]);
  const auto a = w.lanes<float>(i.r[1]), b = w.lanes<float>(i.r[2]);
  w.each([&](unsigned lane) {
    to.set(lane, static_cast<uint32_t>(narrowed(a[lane], Half{}).bits) << 16 |
                     narrowed(b[lane], Half{}).bits);
  });
}

std::optional<Form> find_narrow(const Opcode& op) {
  const std::string &to = op.type(1), &from = op.type();
  const bool plain = op.has("rn") && !op.has("satfinite") && !op.has("relu");
  if (from == "f32" && plain) {
    if (to == "bf16") return Form{narrow<BFloat16>, {2, 4}};
    if (to == "f16") return Form{narrow<Float16>, {2, 4}};
    if (to == "bf16x2") return Form{narrow_two<BFloat16>, {4, 4, 4}};
    if (to == "f16x2") return Form{narrow_two<Float16>, {4, 4, 4}};
  }
  if (to == "f32" && from == "bf16") return Form{widen<BFloat16>, {4, 2}};
  if (to == "f32" && from == "f16") return Form{widen<Float16>, {4, 2}};
  return std::nullopt;
}

}  // namespace

std::optional<Form> find_conversion(const Opcode& op) {
  if (op.parts[0] != "cvt" || op.parts.size() < 3) return std::nullopt;
  if (const auto found = find_narrow(op)) return found;
  if (op.has("ftz") || op.has("satfinite") || op.has("relu")) return std::nullopt;
  Form f;
  f.run = with_type(op.type(1), [&](auto to) {
    using D = typename decltype(to)::type;
    return with_type(
        op.type(), [](auto from) -> Handler { return convert<D, typename decltype(from)::type>; });
  });
  if (f.run == nullptr) return std::nullopt;
  f.widths = {-bytes_of_type(op.type(1)), -bytes_of_type(op.type())};
  const bool whole = op.has("rni") || op.has("rzi") || op.has("rmi") || op.has("rpi");
  f.number = static_cast<int64_t>(rounding_of(op)) | (op.has("sat") ? 4 : 0) | (whole ? 8 : 0);
  return f;
}

}  // namespace tessera::test::ptx
