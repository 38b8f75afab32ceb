// Element types and the combiners of reductions.
#pragma once

#include <cstdint>

namespace tessera {

enum class DType : uint8_t { float32, float64, bfloat16, int32, int64, uint8, bool_, float16 };

/// Bytes of one element.
int64_t size_of(DType dtype);
/// "float32", "bfloat16", "bool", ...
const char* to_string(DType dtype);
/// The inverse of to_string. Throws a usage error with the nearest name.
DType parse_dtype(const char* name);

/// 16-bit floating types: stored in 16 bits, computed in float32, rounded to nearest even.
constexpr bool is_narrow(DType t) { return t == DType::bfloat16 || t == DType::float16; }

constexpr bool is_floating(DType t) {
  return t == DType::float32 || t == DType::float64 || is_narrow(t);
}

/// How values along a reduced dim, or of the ranks along an axis, are combined. `any` and `all` are
/// logical or and and for bool, bitwise or and and for uint8.
enum class Combiner : uint8_t { sum, max, min, prod, any, all };

const char* to_string(Combiner combiner);

/// 8-bit floating formats: e4m3 has 4 exponent bits and a maximum of 448, e5m2 has 5 and 57344.
/// They are not dtypes: such numbers are kept in tensors of a wider dtype.
enum class Float8 : uint8_t { e4m3, e5m2 };

}  // namespace tessera
