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

/// Stored in 16 bits, computed in float32 and rounded to nearest even.
constexpr bool is_narrow(DType t) { return t == DType::bfloat16 || t == DType::float16; }

constexpr bool is_floating(DType t) {
  return t == DType::float32 || t == DType::float64 || is_narrow(t);
}

/// How the values of a reduced index, or of the ranks along an axis, are combined.
/// `any` and `all` are the logical or and and of bool (of uint8: bitwise or and and).
enum class Combiner : uint8_t { sum, max, min, prod, any, all };

const char* to_string(Combiner combiner);

/// Floating formats of 8 bits: e4m3 has 4 bits of exponent and reaches 448, e5m2 has 5 and reaches
/// 57344. They are no dtypes: tensors hold such numbers in a wider one.
enum class Float8 : uint8_t { e4m3, e5m2 };

}  // namespace tessera
