// Ops that compute an element from the elements at its place, by broadcasting.
#include <cmath>

#include "pytorch/aten.h"

namespace tessera::pytorch {

DType common_dtype(const Value& a, const Value& b) {
  // A number takes the dtype of the tensor unless its kind is a higher one.
  const auto kind = [](DType t) { return is_floating(t) ? 2 : t == DType::bool_ ? 0 : 1; };
  if (kind(a.dtype) != kind(b.dtype)) return kind(a.dtype) > kind(b.dtype) ? a.dtype : b.dtype;
  if (a.number || b.number) return a.number ? b.dtype : a.dtype;
  if (a.dtype == b.dtype) return a.dtype;
  if (kind(a.dtype) == 1) return DType::int32;
  return a.dtype == DType::float64 || b.dtype == DType::float64 ? DType::float64 : DType::float32;
}

/// Cephes' polynomial on [0, tan(pi / 8)], to which the others are led back.
Tensor arc_tangent(const Tensor& x) {
  const Tensor size = abs(x);
  const Tensor is_large = greater(size, 2.414213562373095),
               is_middle = greater(size, 0.4142135623730950);
  const Tensor small = where(is_middle, 0.0, size), large = where(is_large, size, 1.0);
  const Tensor t =
      where(is_large, neg(reciprocal(large)), where(is_middle, (size - 1.0) / (size + 1.0), small));
  const Tensor z = square(t);
  const Tensor p =
      (((z * 8.05374449538e-2 - 1.38776856032e-1) * z + 1.99777106478e-1) * z - 3.33329491539e-1) *
          z * t +
      t;
  const Tensor y = p + where(is_large, tessera::constant(x.graph(), M_PI / 2, x.dtype()),
                             where(is_middle, tessera::constant(x.graph(), M_PI / 4, x.dtype()),
                                   tessera::constant(x.graph(), 0, x.dtype())));
  return where(less(x, 0.0), neg(y), y);
}

Tensor arc_tangent(const Tensor& y, const Tensor& x) {
  const Tensor turned = where(less(y, 0.0), -M_PI, ones_like(y) * M_PI);
  const Tensor none = equal(x, 0.0);
  const Tensor angle = arc_tangent(y / where(none, 1.0, x));
  return where(none, sign(y) * (M_PI / 2), where(less(x, 0.0), angle + turned, angle));
}

namespace {

/// f(self) in the dtype of the result.
template <auto f>
std::vector<Value> unary(Call& c) {
  return {c.pointwise({c.value("self")}, c.dtype(), [](const auto& x) { return f(x[0]); })};
}

/// f(self, other) in the dtype of the result.
template <auto f>
std::vector<Value> binary(Call& c) {
  return {c.pointwise({c.value("self"), c.value("other")}, c.dtype(),
                      [](const auto& x) { return f(x[0], x[1]); })};
}

/// f(self, alpha other).
template <auto f>
std::vector<Value> scaled(Call& c) {
  const double alpha = c.number("alpha", 1);
  return {c.pointwise({c.value("self"), c.value("other")}, c.dtype(),
                      [&](const auto& x) { return f(x[0], alpha == 1 ? x[1] : x[1] * alpha); })};
}

template <auto f>
std::vector<Value> comparison(Call& c) {
  const Value a = c.value("self"), b = c.value("other");
  return {c.pointwise({a, b}, common_dtype(a, b), [](const auto& x) { return f(x[0], x[1]); })};
}

/// Of truths; bits of whole numbers are refused.
template <auto f>
std::vector<Value> logical(Call& c) {
  const Value a = c.value("self"), b = c.value("other");
  if (c.dtype() != DType::bool_)
    c.refuse("combines the bits of whole numbers, which Tessera cannot");
  return {c.pointwise({a, b}, {}, [](const auto& x) {
    const auto truth = [](const Tensor& t) {
      return t.dtype() == DType::bool_ ? t : not_equal(t, 0.0);
    };
    return f(truth(x[0]), truth(x[1]));
  })};
}

std::vector<Value> quotient(Call& c) {
  const std::string mode = c.text("rounding_mode", "");
  return {c.pointwise({c.value("self"), c.value("other")}, c.dtype(), [&](const auto& x) {
    if (!is_floating(c.dtype())) return mode == "floor" ? floor_div(x[0], x[1]) : div(x[0], x[1]);
    const Tensor y = div(x[0], x[1]);
    if (mode == "floor") return floor(y);
    return mode == "trunc" ? sign(y) * floor(abs(y)) : y;
  })};
}

std::vector<Value> power(Call& c) {
  const Value exponent = c.value("exponent"), base = c.value("self");
  return {c.pointwise({base, exponent}, c.dtype(), [&](const auto& x) {
    const double p = exponent.number.value_or(NAN);
    if (p == 2) return square(x[0]);
    if (p == 1) return x[0];
    if (p == 3) return square(x[0]) * x[0];
    if (p == 0.5) return sqrt(x[0]);
    if (p == -0.5) return rsqrt(x[0]);
    if (p == -1) return reciprocal(x[0]);
    if (base.number && *base.number > 0) return exp(x[1] * std::log(*base.number));
    return pow(x[0], x[1]);
  })};
}

/// The same number in another dtype.
std::vector<Value> converted(Call& c) {
  return {c.pointwise({c.value("self")}, c.dtype(), [](const auto& x) { return x[0]; })};
}

std::vector<Value> selected(Call& c) {
  const Value condition = c.value("condition"), a = c.value("self"), b = c.value("other");
  return {c.pointwise({condition, a, b}, {}, [&](const auto& x) {
    const auto of = [&](const Value& v, const Tensor& t) {
      return v.number ? c.constant(*v.number, c.dtype()) : cast(t, c.dtype());
    };
    return where(x[0], of(a, x[1]), of(b, x[2]));
  })};
}

std::vector<Value> filled_where(Call& c) {
  const Value mask = c.value("mask"), value = c.value("value"), self = c.value("self");
  return {c.pointwise({self, mask, value}, {}, [&](const auto& x) {
    const Tensor fill = value.number ? c.constant(*value.number, c.dtype()) : cast(x[2], c.dtype());
    return where(x[1], fill, x[0]);
  })};
}

std::vector<Value> clamped(Call& c) {
  std::vector<Value> xs = {c.value("self")};
  const std::optional<Value> low = c.find("min"), high = c.find("max");
  for (const auto& bound : {low, high})
    if (bound) xs.push_back(*bound);
  return {c.pointwise(xs, c.dtype(), [&](const auto& x) {
    Tensor y = x[0];  // its gradient is zero at a bound that is a number, and half at an element
    if (low) y = low->number ? where(greater(y, x[1]), y, x[1]) : maximum(y, x[1]);
    const Tensor& most = x[x.size() - 1];
    if (high) y = high->number ? where(less(y, most), y, most) : minimum(y, most);
    return y;
  })};
}

/// min(max(x, low), high), whose gradient is zero at low and high, too.
Tensor hard_clip(const Tensor& x, double low, double high) {
  return where(logical_and(greater(x, low), less(x, high)), x, stop_gradient(clip(x, low, high)));
}

std::vector<Value> clamped_to(Call& c) {  // hardtanh
  return {c.pointwise({c.value("self")}, c.dtype(), [&](const auto& x) {
    return hard_clip(x[0], c.number("min_val", -1), c.number("max_val", 1));
  })};
}

std::vector<Value> leaky(Call& c) {
  return {c.pointwise({c.value("self")}, c.dtype(), [&](const auto& x) {
    return leaky_relu(x[0], c.number("negative_slope", 0.01));
  })};
}

std::vector<Value> gelu_rule(Call& c) {
  return {c.pointwise({c.value("self")}, c.dtype(), [&](const auto& x) {
    return c.text("approximate", "none") == "tanh" ? gelu(x[0]) : activate(x[0], "gelu_erf");
  })};
}

std::vector<Value> elu_rule(Call& c) {
  const double alpha = c.number("alpha", 1) * c.number("scale", 1), scale = c.number("scale", 1);
  return {c.pointwise({c.value("self")}, c.dtype(), [&](const auto& x) {
    if (c.number("input_scale", 1) != 1) c.refuse("scales its input, which Tessera does not know");
    return where(greater(x[0], 0.0), x[0] * scale,
                 (exp(where(greater(x[0], 0.0), 0.0, x[0])) - 1.0) * alpha);
  })};
}

std::vector<Value> softplus_rule(Call& c) {
  const double beta = c.number("beta", 1), threshold = c.number("threshold", 20);
  return {c.pointwise({c.value("self")}, c.dtype(), [&](const auto& x) {
    const Tensor scaled = beta == 1 ? x[0] : x[0] * beta;
    const Tensor soft = softplus(where(greater(scaled, threshold), 0.0, scaled));
    return where(greater(scaled, threshold), x[0], beta == 1 ? soft : soft / beta);
  })};
}

std::vector<Value> linear_step(Call& c) {
  return {c.pointwise({c.value("self"), c.value("end"), c.value("weight")}, c.dtype(),
                      [](const auto& x) { return x[0] + (x[1] - x[0]) * x[2]; })};
}

/// self + value tensor1 op tensor2.
template <auto f>
std::vector<Value> added(Call& c) {
  const double value = c.number("value", 1);
  return {c.pointwise({c.value("self"), c.value("tensor1"), c.value("tensor2")}, c.dtype(),
                      [&](const auto& x) { return x[0] + f(x[1], x[2]) * value; })};
}

Tensor arc_sine(const Tensor& x) { return arc_tangent(x * rsqrt(1.0 - square(x))); }

Tensor truncated(const Tensor& x) { return is_floating(x.dtype()) ? sign(x) * floor(abs(x)) : x; }

/// Weights are those of axis 1, or one.
std::vector<Value> parametric_relu(Call& c) {
  const Value x = c.value("self");
  Value w = c.value("weight");
  for (size_t i = 2; i < x.axes.size() && c.sizes(w) != std::vector<int64_t>{1}; ++i)
    w.axes.emplace_back();
  return {c.pointwise({x, w}, c.dtype(),
                      [](const auto& t) { return where(greater(t[0], 0.0), t[0], t[0] * t[1]); })};
}

/// a sigmoid(b) of the halves of an axis.
std::vector<Value> gated(Call& c) {
  const Value x = c.value("self");
  const size_t d = c.axis("dim", x.axes.size(), -1);
  return {c.pointwise({part_of(c, x, d, 2, false, 0), part_of(c, x, d, 2, false, 1)}, c.dtype(),
                      [](const auto& t) { return t[0] * sigmoid(t[1]); })};
}

/// Zero within [-lambd, lambd]; soft: what is outside comes nearer by it.
template <bool soft>
std::vector<Value> shrunk(Call& c) {
  const double l = c.number("lambd", 0.5);
  return {c.pointwise({c.value("self")}, c.dtype(), [&](const auto& x) {
    return where(greater(abs(x[0]), l), soft ? x[0] - sign(x[0]) * l : x[0], zeros_like(x[0]));
  })};
}

std::vector<Value> threshold_rule(Call& c) {
  return {c.pointwise({c.value("self")}, c.dtype(), [&](const auto& x) {
    return where(greater(x[0], c.number("threshold")), x[0],
                 c.constant(c.number("value"), c.dtype()));
  })};
}

std::vector<Value> finite_numbers(Call& c) {
  return {c.pointwise({c.value("self")}, c.dtype(), [&](const auto& x) {
    const auto of = [&](const char* arg, double fallback) {
      return c.constant(c.number(arg, fallback), c.dtype());
    };
    const double most =
        c.dtype() == DType::float64 ? 1.7976931348623157e308 : 3.4028234663852886e38;
    const Tensor y = where(is_nan(x[0]), of("nan", 0), x[0]);
    return where(is_inf(y), where(greater(y, 0.0), of("posinf", most), of("neginf", -most)), y);
  })};
}

#define UNARY(...) unary<[](const Tensor& x) -> Tensor { return __VA_ARGS__; }>
#define BINARY(kind, ...) \
  kind<[](const Tensor& a, const Tensor& b) -> Tensor { return __VA_ARGS__; }>

const Row kPointwise[] = {
    {"add.Tensor add.Scalar", BINARY(scaled, add(a, b))},
    {"sub.Tensor sub.Scalar", BINARY(scaled, sub(a, b))},
    {"rsub.Tensor rsub.Scalar", BINARY(scaled, sub(b, a))},
    {"mul.Tensor mul.Scalar",
     BINARY(binary, a.dtype() == DType::bool_ && b.dtype() == DType::bool_ ? logical_and(a, b)
                                                                           : mul(a, b))},
    {"div.Tensor div.Scalar div.Tensor_mode div.Scalar_mode", quotient},
    {"floor_divide.default floor_divide.Scalar", BINARY(binary, floor_div(a, b))},
    {"remainder.Tensor remainder.Scalar", BINARY(binary, mod(a, b))},
    {"fmod.Tensor fmod.Scalar", BINARY(binary, a - truncated(a / b) * b)},
    {"atan2.default", BINARY(binary, arc_tangent(a, b))},
    {"hypot.default", BINARY(binary, sqrt(square(a) + square(b)))},
    {"logaddexp.default", BINARY(binary, maximum(a, b) + log1p(exp(neg(abs(a - b)))))},
    {"xlogy.Tensor",
     BINARY(binary, where(equal(a, 0.0), 0.0, a* log(where(equal(a, 0.0), 1.0, b))))},
    {"maximum.default max.other fmax.default", BINARY(binary, maximum(a, b))},
    {"minimum.default min.other fmin.default", BINARY(binary, minimum(a, b))},
    {"pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar float_power.Tensor_Scalar", power},
    {"addcmul.default", BINARY(added, mul(a, b))},
    {"addcdiv.default", BINARY(added, div(a, b))},
    {"lerp.Tensor lerp.Scalar", linear_step},
    {"eq.Tensor eq.Scalar", BINARY(comparison, equal(a, b))},
    {"ne.Tensor ne.Scalar", BINARY(comparison, not_equal(a, b))},
    {"lt.Tensor lt.Scalar", BINARY(comparison, less(a, b))},
    {"le.Tensor le.Scalar", BINARY(comparison, less_equal(a, b))},
    {"gt.Tensor gt.Scalar", BINARY(comparison, greater(a, b))},
    {"ge.Tensor ge.Scalar", BINARY(comparison, greater_equal(a, b))},
    {"logical_and.default bitwise_and.Tensor bitwise_and.Scalar __and__.Tensor __and__.Scalar",
     BINARY(logical, logical_and(a, b))},
    {"logical_or.default bitwise_or.Tensor bitwise_or.Scalar __or__.Tensor __or__.Scalar",
     BINARY(logical, logical_or(a, b))},
    {"logical_xor.default bitwise_xor.Tensor __xor__.Tensor", BINARY(logical, logical_xor(a, b))},
    {"logical_not.default bitwise_not.default",
     [](
         Call& c) -> std::
                      vector<Value> {
                        if (c.dtype() != DType::bool_)
                          c.refuse("inverts the bits of whole numbers, which Tessera cannot");
                        return {c.pointwise({c.value("self")}, DType::bool_,
                                            [](const auto& x) { return logical_not(x[0]); })};
                      }},
    {"neg.default", UNARY(neg(x))},
    {"abs.default", UNARY(abs(x))},
    {"sign.default sgn.default", UNARY(sign(x))},
    {"exp.default", UNARY(exp(x))},
    {"exp2.default", UNARY(exp(x * 0.69314718055994530942))},
    {"expm1.default", UNARY(exp(x) - 1.0)},
    {"log.default", UNARY(log(x))},
    {"log2.default", UNARY(log(x) * 1.44269504088896340736)},
    {"log1p.default", UNARY(log1p(x))},
    {"sqrt.default", UNARY(sqrt(x))},
    {"rsqrt.default", UNARY(rsqrt(x))},
    {"reciprocal.default", UNARY(reciprocal(x))},
    {"square.default", UNARY(square(x))},
    {"sin.default", UNARY(sin(x))},
    {"cos.default", UNARY(cos(x))},
    {"tan.default", UNARY(sin(x) / cos(x))},
    {"sinh.default", UNARY((exp(x) - exp(neg(x))) * 0.5)},
    {"cosh.default", UNARY((exp(x) + exp(neg(x))) * 0.5)},
    {"atan.default arctan.default", UNARY(arc_tangent(x))},
    {"asin.default arcsin.default", UNARY(arc_sine(x))},
    {"acos.default arccos.default", UNARY(M_PI / 2 - arc_sine(x))},
    {"asinh.default", UNARY(sign(x) * log(abs(x) + sqrt(square(x) + 1.0)))},
    {"acosh.default", UNARY(log(x + sqrt(square(x) - 1.0)))},
    {"atanh.default", UNARY(log((x + 1.0) / (1.0 - x)) * 0.5)},
    {"sinc.default",
     UNARY(where(equal(x, 0.0), 1.0, sin(x* M_PI) / where(equal(x, 0.0), 1.0, x* M_PI)))},
    {"logit.default", UNARY(log(x / (1.0 - x)))},
    {"erfc.default", UNARY(1.0 - erf(x))},
    {"erfinv.default", UNARY(erf_inv(x))},
    {"trunc.default fix.default", UNARY(truncated(x))},
    {"frac.default", UNARY(x - truncated(x))},
    {"hardshrink.default", shrunk<false>},
    {"softshrink.default", shrunk<true>},
    {"threshold.default", threshold_rule},
    {"prelu.default _prelu_kernel.default", parametric_relu},
    {"glu.default", gated},
    {"nan_to_num.default", finite_numbers},
    {"tanh.default", UNARY(tanh(x))},
    {"sigmoid.default", UNARY(sigmoid(x))},
    {"log_sigmoid.default", UNARY(neg(softplus(neg(x))))},
    {"relu.default", UNARY(relu(x))},
    {"relu6.default", UNARY(hard_clip(x, 0, 6))},
    {"silu.default", UNARY(silu(x))},
    {"hardsigmoid.default", UNARY(hard_clip(x + 3.0, 0, 6) / 6.0)},
    {"hardswish.default", UNARY(x* hard_clip(x + 3.0, 0, 6) / 6.0)},
    {"mish.default", UNARY(x* tanh(softplus(x)))},
    {"erf.default", UNARY(erf(x))},
    {"floor.default", UNARY(is_floating(x.dtype()) ? floor(x) : x)},
    {"ceil.default", UNARY(is_floating(x.dtype()) ? ceil(x) : x)},
    {"round.default", UNARY(is_floating(x.dtype()) ? round(x) : x)},
    {"gelu.default", gelu_rule},
    {"elu.default selu.default celu.default", elu_rule},
    {"softplus.default", softplus_rule},
    {"leaky_relu.default", leaky},
    {"hardtanh.default", clamped_to},
    {"clamp.default clamp.Tensor clamp_min.default clamp_max.default", clamped},
    {"where.self where.ScalarOther where.ScalarSelf where.Scalar", selected},
    {"masked_fill.Scalar masked_fill.Tensor", filled_where},
    {"isnan.default",
     [](
         Call& c) -> std::
                      vector<Value> {
                        return {c.pointwise({c.value("self")}, {},
                                            [](const auto& x) { return is_nan(x[0]); })};
                      }},
    {"isfinite.default",
     [](
         Call& c) -> std::
                      vector<Value> {
                        return {c.pointwise({c.value("self")}, {},
                                            [](const auto& x) { return is_finite(x[0]); })};
                      }},
    {"isinf.default",
     [](
         Call& c) -> std::
                      vector<Value> {
                        return {c.pointwise({c.value("self")}, {},
                                            [](const auto& x) { return is_inf(x[0]); })};
                      }},
    {"to.dtype to.dtype_layout to.device to.other _to_copy.default type_as.default float.default "
     "alias.default clone.default contiguous.default lift_fresh_copy.default lift_fresh.default "
     "lift.default detach_copy.default view.dtype",
     converted},
    {"detach.default",
     [](Call& c) -> std::
                     vector<Value> {
                       return {c.pointwise({c.value("self")}, {},
                                           [](const auto& x) { return stop_gradient(x[0]); })};
                     }},
    {"copy.default",
     [](Call& c)
         -> std::
             vector<Value> {
               const Value self = c.value("self"), source = c.value("src");
               return {c.pointwise({self, source}, c.dtype(), [](const auto& x) { return x[1]; })};
             }},
};

}  // namespace

std::span<const Row> pointwise_rows() { return kPointwise; }

}  // namespace tessera::pytorch
