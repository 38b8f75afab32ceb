#include "ops/infer.h"

#include <cmath>
#include <limits>
#include <utility>

#include "base/misspelt.h"

namespace tessera {

void require_same_dtype(const OpCall& call) {
  for (size_t i = 1; i < call.in.size(); ++i) {
    TESSERA_REQUIRE(
        call.in[i].dtype == call.in[0].dtype,
        "operand {} is {} but operand 0 is {}; there is no implicit conversion, use cast()", i,
        to_string(call.in[i].dtype), to_string(call.in[0].dtype));
  }
}

void require_number(DType dtype) {
  TESSERA_REQUIRE(dtype != DType::bool_,
                  "bool has no arithmetic; cast() it to int32 or float32, or use the "
                  "logical ops");
}

namespace {
/// The largest number of a floating dtype, and the least above it that is rounded to infinity.
std::pair<double, double> largest_of(DType dtype) {
  switch (dtype) {
    case DType::float16:
      return {65504, 65520};
    case DType::bfloat16:
      return {0x1.FEp127, 0x1.FFp127};
    case DType::float32:
      return {0x1.FFFFFEp127, 0x1.FFFFFFp127};
    default:
      return {std::numeric_limits<double>::max(), std::numeric_limits<double>::infinity()};
  }
}

/// The range of an integer dtype or bool.
std::pair<double, double> range_of(DType dtype) {
  switch (dtype) {
    case DType::bool_:
      return {0, 1};
    case DType::uint8:
      return {0, 255};
    case DType::int32:
      return {std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()};
    default:  // the largest below 2^63
      return {-0x1p63, 0x1.fffffffffffffp62};
  }
}
}  // namespace

void require_holds(DType dtype, double value) {
  if (is_floating(dtype)) {
    const auto [largest, infinite] = largest_of(dtype);
    TESSERA_REQUIRE(
        !std::isfinite(value) || std::abs(value) < infinite,
        "{} is no {}, whose largest number is {}; cast() what it meets to a wider dtype, or "
        "give another number, or infinity if that is meant",
        value, to_string(dtype), largest);
    return;
  }
  const auto [least, most] = range_of(dtype);
  TESSERA_REQUIRE(value == std::trunc(value) && value >= least && value <= most,
                  "{} is no {}; cast() what it meets to a floating type, or give another number",
                  value, to_string(dtype));
}

void require_fill(DType dtype, double value) {
  if (!std::isinf(value)) require_holds(dtype, value);
}

std::string size_text(const Dim& d, const Dim& other) {
  if (d.is_bounded == other.is_bounded) return std::to_string(d.size);
  return fmt::format("{}{}{}", d.name, d.is_bounded ? "<=" : "=", d.size);
}

void require_same_sizes(const OpCall& call) {
  for (size_t i = 0; i < call.in.size(); ++i) {
    for (const Dim& d : call.in[i].shape) {
      for (size_t j = 0; j < i; ++j) {
        const int k = call.in[j].shape.find(d.name);
        if (k < 0) continue;
        const Dim& other = call.in[j].shape[k];
        TESSERA_REQUIRE(
            other == d,
            "dim '{}' is {} in operand {} but {} in operand {}; dims of one name must agree",
            d.name, size_text(other, d), j, size_text(d, other), i);
      }
    }
  }
}

void require_index(const ValueType& type) {
  TESSERA_REQUIRE(type.dtype == DType::int32 || type.dtype == DType::int64,
                  "the indices are {}; they must be int32 or int64, use cast()",
                  to_string(type.dtype));
}

namespace {
bool is_subsequence(const Shape& small, const Shape& large) {
  int i = 0;
  for (const Dim& d : large) {
    if (i < small.rank() && small[i].name == d.name) ++i;
  }
  return i == small.rank();
}
}  // namespace

Shape broadcast_shape(const OpCall& call) {
  Shape shape = call.in[0].shape;
  for (size_t i = 1; i < call.in.size(); ++i) {
    const Shape& other = call.in[i].shape;
    if (is_subsequence(shape, other)) {
      shape = other;
    } else if (!is_subsequence(other, shape)) {
      if (!OnBehalf::is_open()) require_no_misspelling(shape, other);
      shape = shape.united(other);
    }
  }
  return shape;
}

void require_dims(const Shape& shape, const std::vector<std::string>& names, const char* what) {
  TESSERA_REQUIRE(!names.empty(), "no {} dim is given", what);
  for (size_t i = 0; i < names.size(); ++i) {
    TESSERA_REQUIRE(shape.has(names[i]), "{} dim '{}' is not in {}{}", what, names[i],
                    shape.to_string(), suggestion(names[i], shape.names()));
    for (size_t j = 0; j < i; ++j)
      TESSERA_REQUIRE(names[i] != names[j], "{} dim '{}' is given twice", what, names[i]);
  }
}

}  // namespace tessera
