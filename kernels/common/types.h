// From DType to C++ types: of elements in memory, and of accumulation.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/fail.h"
#include "base/float16.h"
#include "tessera/dtype.h"

namespace tessera::kernels {

template <class T>
constexpr bool kIsNarrow = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;

/// The type in which elements of type T are computed: float for 16-bit types, else T.
template <class T>
using Compute = std::conditional_t<kIsNarrow<T>, float, T>;

template <class T>
TESSERA_HD Compute<T> load_as(T x) {
  if constexpr (kIsNarrow<T>)
    return to_float(x);
  else
    return x;
}

template <class T>
TESSERA_HD T store_as(Compute<T> x) {
  if constexpr (kIsNarrow<T>)
    return narrowed(x, T{});
  else
    return x;
}

/// Calls body(T{}) with the C++ type for elements of dtype `t`; bool is uint8_t.
template <class Body>
decltype(auto) with_element(DType t, Body&& body) {
  switch (t) {
    case DType::float32:
      return body(float{});
    case DType::float64:
      return body(double{});
    case DType::bfloat16:
      return body(BFloat16{});
    case DType::float16:
      return body(Float16{});
    case DType::int32:
      return body(int32_t{});
    case DType::int64:
      return body(int64_t{});
    case DType::uint8:
    case DType::bool_:
      return body(uint8_t{});
  }
  fail(ErrorKind::internal, "unknown dtype {}", static_cast<int>(t));
}

/// Calls body(T{}) with the C++ type for the 16-bit dtype `t`.
template <class Body>
decltype(auto) with_narrow(DType t, Body&& body) {
  return t == DType::float16 ? body(Float16{}) : body(BFloat16{});
}

/// `x` rounded to dtype `t` if that has 16 bits.
inline float rounded_to(float x, DType t) {
  return !is_narrow(t) ? x : t == DType::float16 ? round_to_float16(x) : round_to_bfloat16(x);
}

/// Calls body(T{}) with an unsigned integer of the size of dtype `t`: for moving bits.
template <class Body>
decltype(auto) with_bits(DType t, Body&& body) {
  switch (size_of(t)) {
    case 1:
      return body(uint8_t{});
    case 2:
      return body(uint16_t{});
    case 4:
      return body(uint32_t{});
    default:
      return body(uint64_t{});
  }
}

/// a + b; integers wrap around.
template <class T>
TESSERA_HD T wrapping_add(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) +
                          static_cast<std::make_unsigned_t<T>>(b));
  } else {
    return a + b;
  }
}

template <class T>
TESSERA_HD T wrapping_mul(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  } else {
    return a * b;
  }
}

}  // namespace tessera::kernels
