// Logic, shifts and bit fields; moves and selections.
#include <bit>
#include <type_traits>

#include "gpu/ptx/map.h"

namespace tessera::test::ptx {

namespace {

struct And {
  template <class T>
  static T apply(T a, T b) {
    return a & b;
  }
};
struct Or {
  template <class T>
  static T apply(T a, T b) {
    return a | b;
  }
};
struct Xor {
  template <class T>
  static T apply(T a, T b) {
    return a ^ b;
  }
};
struct Not {
  template <class T>
  static T apply(T a) {
    return static_cast<T>(~a);
  }
};
struct CNot {
  template <class T>
  static T apply(T a) {
    return a == 0 ? 1 : 0;
  }
};
struct Move {
  template <class T>
  static T apply(T a) {
    return a;
  }
};

/// Amounts beyond the width move everything out.
struct Shl {
  template <class T>
  static T apply(T a, uint32_t n) {
    return n >= 8 * sizeof(T) ? T{0} : static_cast<T>(static_cast<uint64_t>(a) << n);
  }
};
struct Shr {
  template <class T>
  static T apply(T a, uint32_t n) {
    constexpr uint32_t kMost = 8 * sizeof(T) - 1;
    if (n > kMost && !std::is_signed_v<T>) return 0;
    return static_cast<T>(a >> std::min(n, kMost));
  }
};
/// The upper or lower half of b:a, shifted; wrap: by an amount modulo 32, clamp: at most 32.
template <bool kLeft, bool kWrap>
struct Funnel {
  static uint32_t apply(uint32_t a, uint32_t b, uint32_t n) {
    n = kWrap ? n & 31 : std::min(n, 32U);
    const uint64_t both = uint64_t{b} << 32 | a;
    return static_cast<uint32_t>(kLeft ? both << n >> 32 : both >> n);
  }
};
/// Four bytes of b:a, chosen by the nibbles of s; with its highest bit a byte's sign.
struct Permute {
  static uint32_t apply(uint32_t a, uint32_t b, uint32_t s) {
    const uint64_t both = uint64_t{b} << 32 | a;
    uint32_t result = 0;
    for (int k = 0; k < 4; ++k) {
      const uint32_t nibble = s >> 4 * k & 15;
      uint32_t byte = static_cast<uint32_t>(both >> 8 * (nibble & 7)) & 0xff;
      if ((nibble & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
      result |= byte << 8 * k;
    }
    return result;
  }
};
struct Extract {
  template <class T>
  static T apply(T a, uint32_t position, uint32_t length) {
    constexpr int kBits = 8 * sizeof(T);
    const int first = static_cast<int>(position & 0xff), many = static_cast<int>(length & 0xff);
    const int sign_at = std::min(first + many - 1, kBits - 1);
    const bool sign = std::is_signed_v<T> && many > 0 && (a >> sign_at & 1) != 0;
    T result = 0;
    for (int k = 0; k < kBits; ++k) {
      const bool bit = k < many && first + k < kBits ? (a >> (first + k) & 1) != 0 : sign;
      result = static_cast<T>(result | static_cast<T>(T{bit} << k));
    }
    return result;
  }
};
struct Insert {
  template <class T>
  static T apply(T a, T b, uint32_t position, uint32_t length) {
    constexpr int kBits = 8 * sizeof(T);
    const int first = static_cast<int>(position & 0xff), many = static_cast<int>(length & 0xff);
    for (int k = 0; k < many && first + k < kBits; ++k) {
      const T bit = T{1} << (first + k);
      b = (a >> k & 1) != 0 ? b | bit : b & ~bit;
    }
    return b;
  }
};
struct CountZeros {
  template <class T>
  static uint32_t apply(T a) {
    return static_cast<uint32_t>(std::countl_zero(a));
  }
};
struct CountOnes {
  template <class T>
  static uint32_t apply(T a) {
    return static_cast<uint32_t>(std::popcount(a));
  }
};
struct Reverse {
  template <class T>
  static T apply(T a) {
    T result = 0;
    for (size_t k = 0; k < 8 * sizeof(T); ++k) result = static_cast<T>(result << 1 | (a >> k & 1));
    return result;
  }
};
/// The highest bit that differs from the sign; kShift: how far it is from the top.
template <bool kShift>
struct FindHighest {
  template <class T>
  static uint32_t apply(T a) {
    using U = std::make_unsigned_t<T>;
    const U x = std::is_signed_v<T> && a < 0 ? static_cast<U>(~a) : static_cast<U>(a);
    if (x == 0) return ~0U;
    const int zeros = std::countl_zero(x);
    return static_cast<uint32_t>(kShift ? zeros : static_cast<int>(8 * sizeof(T)) - 1 - zeros);
  }
};

/// Any function of three bits, as a table of eight.
void lop3(Warp& w, const Instruction& i) {
  const auto to = w.lanes<uint32_t>(i.r[0]), a = w.lanes<uint32_t>(i.r[1]),
             b = w.lanes<uint32_t>(i.r[2]), c = w.lanes<uint32_t>(i.r[3]);
  w.each([&](unsigned lane) {
    uint32_t result = 0;
    for (int k = 0; k < 8; ++k) {
      if ((i.number >> k & 1) == 0) continue;
      result |= ((k & 4) != 0 ? a[lane] : ~a[lane]) & ((k & 2) != 0 ? b[lane] : ~b[lane]) &
                ((k & 1) != 0 ? c[lane] : ~c[lane]);
    }
    to.set(lane, result);
  });
}

template <class T>
void select(Warp& w, const Instruction& i) {
  const Lanes<T> to = w.lanes<T>(i.r[0]), a = w.lanes<T>(i.r[1]), b = w.lanes<T>(i.r[2]);
  const uint32_t which = w.bits(i.r[3]);
  w.each([&](unsigned lane) { to.set(lane, (which >> lane & 1) != 0 ? a[lane] : b[lane]); });
}

template <class T>
std::optional<Form> find_of(const Opcode& op) {
  constexpr int kWidth = sizeof(T);
  const std::string& name = op.parts[0];
  if (name == "and") return form<And, T, T, T>();
  if (name == "or") return form<Or, T, T, T>();
  if (name == "xor") return form<Xor, T, T, T>();
  if (name == "not") return form<Not, T, T>();
  if (name == "cnot") return form<CNot, T, T>();
  if (name == "shl") return form<Shl, T, T, uint32_t>();
  if (name == "mov") return form<Move, T, T>();
  if (name == "selp") return Form{select<T>, {kWidth, kWidth, kWidth, kPredicate}};
  if constexpr (sizeof(T) >= 4) {
    if (name == "clz") return form<CountZeros, uint32_t, T>();
    if (name == "popc") return form<CountOnes, uint32_t, T>();
    if (name == "brev") return form<Reverse, T, T>();
    if (name == "bfi") return form<Insert, T, T, T, uint32_t, uint32_t>();
  }
  return std::nullopt;
}

}  // namespace

std::optional<Form> find_bits(const Opcode& op) {
  const std::string& name = op.parts[0];
  if (name == "lop3" && op.type() == "b32") return Form{lop3, {4, 4, 4, 4}, Flow::next, 0, true};
  if (name == "prmt" && op.parts.size() == 2)
    return form<Permute, uint32_t, uint32_t, uint32_t, uint32_t>();
  if (name == "shf") {
    using U = uint32_t;
    if (op.has("l"))
      return op.has("wrap") ? form<Funnel<true, true>, U, U, U, U>()
                            : form<Funnel<true, false>, U, U, U, U>();
    return op.has("wrap") ? form<Funnel<false, true>, U, U, U, U>()
                          : form<Funnel<false, false>, U, U, U, U>();
  }
  if (name == "mov" || name == "selp") {
    if (op.type() == "f32") return find_of<uint32_t>(op);
    if (op.type() == "f64") return find_of<uint64_t>(op);
  }
  return of_integer(op.type(), [&](auto tag) -> std::optional<Form> {
    using T = typename decltype(tag)::type;
    if (name == "shr") return form<Shr, T, T, uint32_t>();
    if constexpr (sizeof(T) >= 4) {
      if (name == "bfe") return form<Extract, T, T, uint32_t, uint32_t>();
      if (name == "bfind")
        return op.has("shiftamt") ? form<FindHighest<true>, uint32_t, T>()
                                  : form<FindHighest<false>, uint32_t, T>();
    }
    return find_of<std::make_unsigned_t<T>>(op);
  });
}

/// mov.b64 d, {a, b}: the first is the lowest.
void pack(Warp& w, const Instruction& i) {
  const uint32_t part = i.r[0].bytes / i.count;
  w.each([&](unsigned lane) {
    for (unsigned k = 0; k < i.count; ++k)
      std::memcpy(w.storage(i.r[0], lane) + k * part, w.storage(i.r[k + 1], lane), part);
  });
}

/// mov.b64 {a, b}, d.
void unpack(Warp& w, const Instruction& i) {
  const Register& from = i.r[i.count];
  const uint32_t part = from.bytes / i.count;
  w.each([&](unsigned lane) {
    std::byte whole[16];
    std::memcpy(whole, w.storage(from, lane), from.bytes);
    for (unsigned k = 0; k < i.count; ++k)
      std::memcpy(w.storage(i.r[k], lane), whole + k * part, part);
  });
}

}  // namespace tessera::test::ptx
