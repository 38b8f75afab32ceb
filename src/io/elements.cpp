#include "io/elements.h"

#include <cstring>

#include "base/fail.h"
#include "base/float16.h"

namespace tessera {

namespace {

double wide(double x) { return x; }
float wide(float x) { return x; }
float wide(BFloat16 x) { return to_float(x); }
float wide(Float16 x) { return to_float(x); }

template <class To>
To narrow(double x) {
  if constexpr (std::is_same_v<To, BFloat16>) return to_bfloat16(static_cast<float>(x));
  if constexpr (std::is_same_v<To, Float16>) return to_float16(static_cast<float>(x));
  if constexpr (std::is_arithmetic_v<To>) return static_cast<To>(x);
}

template <class From, class To>
void convert(const void* from, void* to, const int64_t* places, int64_t count) {
  const auto* in = static_cast<const From*>(from);
  auto* out = static_cast<To*>(to);
  const auto one = [](From x) {
    if constexpr (std::is_same_v<From, To>) {
      return x;
    } else {
      return narrow<To>(wide(x));
    }
  };
  for (int64_t i = 0; i < count; ++i) out[places ? places[i] : i] = one(in[i]);
}

template <class From>
void convert_from(const void* from, void* to, DType dtype, const int64_t* places, int64_t count) {
  switch (dtype) {
    case DType::float32:
      return convert<From, float>(from, to, places, count);
    case DType::float64:
      return convert<From, double>(from, to, places, count);
    case DType::bfloat16:
      return convert<From, BFloat16>(from, to, places, count);
    case DType::float16:
      return convert<From, Float16>(from, to, places, count);
    default:
      fail(ErrorKind::internal, "weights are not converted to {}", to_string(dtype));
  }
}

}  // namespace

bool is_weight_dtype(DType dtype) {
  return dtype == DType::float32 || dtype == DType::float64 || dtype == DType::bfloat16 ||
         dtype == DType::float16;
}

void convert_elements(const void* from, DType from_dtype, void* to, DType to_dtype,
                      const int64_t* places, int64_t count) {
  switch (from_dtype) {
    case DType::float32:
      return convert_from<float>(from, to, to_dtype, places, count);
    case DType::float64:
      return convert_from<double>(from, to, to_dtype, places, count);
    case DType::bfloat16:
      return convert_from<BFloat16>(from, to, to_dtype, places, count);
    case DType::float16:
      return convert_from<Float16>(from, to, to_dtype, places, count);
    default:
      fail(ErrorKind::internal, "weights are not converted from {}", to_string(from_dtype));
  }
}

}  // namespace tessera
