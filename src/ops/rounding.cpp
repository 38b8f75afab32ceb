// Rounding in float32 arithmetic that is exact here, so every device gives the same bits. The
// spacing of a format's numbers around x is a power of two: |x| rounded down to one bit, divided by
// 2^(bits - 1). x divided by the spacing is rounded to an integer.
#include "tessera/rounding.h"

#include <cmath>

#include "base/fail.h"
#include "ops/precision.h"

namespace tessera {

namespace {

struct Format {
  int bits;            ///< of the significand, including the hidden bit
  int least_exponent;  ///< of normal numbers
  double greatest;
};

Format format_of(Float8 format) {
  return format == Float8::e4m3 ? Format{4, -6, 448} : Format{3, -14, 57344};
}

/// Larger values are not rounded: the product in power_of_two() would overflow.
constexpr double kLarge = 1e30;

/// The largest power of two <= x for a positive x, 0 for 0. Veltkamp: x (2^23 + 1) rounded to 24
/// bits, minus the difference of that and x, is x rounded to one bit.
Tensor power_of_two(Tensor x, Loc at) {
  Tensor t = mul(x, constant(x.graph(), 8388609.0, DType::float32, {}, at), at);
  Tensor rounded = sub(t, sub(t, x, at), at);
  Tensor half = mul(rounded, constant(x.graph(), 0.5, DType::float32, {}, at), at);
  return where(greater(rounded, x, at), half, rounded, at);
}

/// The spacing of the format's numbers around each element.
Tensor distance(Tensor x, const Format f, Loc at) {
  Graph& g = x.graph();
  Tensor exact = mul(power_of_two(abs(x, at), at),
                     constant(g, std::ldexp(1.0, 1 - f.bits), DType::float32, {}, at), at);
  const double least = std::ldexp(1.0, f.least_exponent - f.bits + 1);
  return maximum(exact, constant(g, least, DType::float32, {}, at), at);
}

void require_float32(const Tensor& x, const char* what, Loc at) {
  TESSERA_REQUIRE(x.dtype() == DType::float32, "[{}] '{}' is {}; it must be float32 ({})", what,
                  x.name(), to_string(x.dtype()), where(at));
}

/// The power of two that scales the largest magnitude of x to just below the format's maximum.
Tensor scale_for(Tensor x, const Format f, Loc at) {
  Graph& g = x.graph();
  Tensor greatest = reduce_max(abs(x, at), x.shape().names(), at);
  Tensor zero = constant(g, 0, DType::float32, {}, at),
         one = constant(g, 1, DType::float32, {}, at);
  Tensor room = div(constant(g, f.greatest, DType::float32, {}, at), greatest, at);
  Tensor scale = power_of_two(minimum(room, constant(g, kLarge, DType::float32, {}, at), at), at);
  return where(greater(greatest, zero, at), scale, one, at);
}

/// x as numbers of the format, still in its dtype, and the scale they were multiplied by.
struct Scaled {
  Tensor numbers, scale;
  Float8 format;
};

Scaled scaled(Tensor x, Float8 format, Loc at) {
  Tensor wide_x = wide(x), scale = scale_for(wide_x, format_of(format), at);
  return {narrow(round_to(mul(wide_x, scale, at), format, at), x.dtype()), scale, format};
}

/// The product of two scaled operands, with the scales divided out.
Tensor product(const Scaled& a, const Scaled& b, const Shape& out, Loc at) {
  Tensor y = einsum_of_float8(a.numbers, b.numbers, out, a.format, b.format, at);
  Tensor back = reciprocal(mul(a.scale, b.scale, at), at);
  return narrow(mul(wide(y), back, at), y.dtype());
}

void require_shared_dims(const Tensor& x, const Tensor& w, const Shape& out, Loc at) {
  for (const auto& [own, other] : {std::pair{x, w}, std::pair{w, x}}) {
    for (const Dim& d : own.shape()) {
      TESSERA_REQUIRE(other.shape().has(d.name) || out.has(d.name),
                      "[float8_matmul] only '{}' {} has dim '{}'; sum it first ({})", own.name(),
                      own.shape().to_string(), d.name, where(at));
    }
  }
  TESSERA_REQUIRE(is_floating(x.dtype()) && x.dtype() != DType::float64,
                  "[float8_matmul] '{}' is {}; it must be float32, bfloat16 or float16 ({})",
                  x.name(), to_string(x.dtype()), where(at));
}

}  // namespace

Tensor round_to(Tensor x, Float8 format, Loc at) {
  return on_behalf_of("round_to", at, [&] {
    require_float32(x, "round_to", at);
    const Format f = format_of(format);
    Tensor inside = clip(x, -f.greatest, f.greatest, at), step = distance(inside, f, at);
    return mul(round(div(inside, step, at), at), step, at);
  });
}

Tensor stochastic_cast(Tensor x, DType dtype, Loc at) {
  return on_behalf_of("stochastic_cast", at, [&] {
    require_float32(x, "stochastic_cast", at);
    TESSERA_REQUIRE(is_narrow(dtype),
                    "[stochastic_cast] to {}; it must be bfloat16 or float16 ({})",
                    to_string(dtype), where(at));
    const Format format =
        dtype == DType::float16 ? Format{11, -14, 65504} : Format{8, -126, kLarge};
    Graph& g = x.graph();
    Tensor step = distance(x, format, at);
    Tensor places = div(x, step, at), below = floor(places, at);
    Tensor chance = random_uniform(g, x.shape(), 0, 1, DType::float32, at);
    Tensor up = cast(less(chance, sub(places, below, at), at), DType::float32, at);
    Tensor y = mul(add(below, up, at), step, at);
    Tensor large = greater(abs(x, at), constant(g, kLarge, DType::float32, {}, at), at);
    return cast(where(large, x, y, at), dtype, at);
  });
}

Tensor float8_matmul(Tensor x, Tensor w, const Shape& out, Loc at) {
  return on_behalf_of("float8_matmul", at, [&]() -> Tensor {
    require_shared_dims(x, w, out, at);
    constexpr Float8 kForward = Float8::e4m3, kBackward = Float8::e5m2;
    return custom_gradient(
        {x, w},
        [=](const std::vector<Tensor>& xs) -> std::vector<Tensor> {
          return {product(scaled(xs[0], kForward, at), scaled(xs[1], kForward, at), out, at)};
        },
        [=](const std::vector<Tensor>& xs, const std::vector<Tensor>&,
            const std::vector<Tensor>& grads) -> std::vector<Tensor> {
          const Scaled gradient = scaled(grads[0], kBackward, at);
          return {product(gradient, scaled(xs[1], kForward, at), xs[0].shape(), at),
                  product(gradient, scaled(xs[0], kForward, at), xs[1].shape(), at)};
        },
        at)[0];
  });
}

}  // namespace tessera
