// Pointwise ops: the records of the rows of program/pointwise_table.inc, and of ops that need more
// or less than one formula. Operands broadcast by name, so the gradient of an operand is summed to
// its dims (sum_to).
#include <cmath>
#include <type_traits>
#include <utility>

#include "base/misspelt.h"
#include "ir/source_ops.h"
#include "ops/infer.h"
#include "ops/precision.h"
#include "ops/sum_to.h"
#include "program/program.h"
#include "tessera/ops.h"

namespace tessera {

namespace {

using Types = std::vector<ValueType>;
using Grads = std::vector<Tensor>;

Types infer_any(const OpCall& call) { return {call.in[0]}; }

Types infer_float(const OpCall& call) {
  TESSERA_REQUIRE(is_floating(call.in[0].dtype), "the operand is {}; it must be floating",
                  to_string(call.in[0].dtype));
  return {call.in[0]};
}

Types infer_cast(const OpCall& call) { return {{call.in[0].shape, dtype_of(call.attrs)}}; }

Types infer_test(const OpCall& call) { return {{call.in[0].shape, DType::bool_}}; }

Types infer_number(const OpCall& call) {
  require_number(call.in[0].dtype);
  return {call.in[0]};
}

Types infer_binary(const OpCall& call) {
  require_same_dtype(call);
  require_same_sizes(call);
  return {{broadcast_shape(call), call.in[0].dtype}};
}

Types infer_arithmetic(const OpCall& call) {
  require_number(call.in[0].dtype);
  return infer_binary(call);
}

Types infer_compare(const OpCall& call) { return {{infer_binary(call)[0].shape, DType::bool_}}; }

Types infer_logical(const OpCall& call) {
  TESSERA_REQUIRE(call.in[0].dtype == DType::bool_, "the operand is {}; it must be bool",
                  to_string(call.in[0].dtype));
  return call.in.size() == 1 ? Types{call.in[0]} : infer_binary(call);
}

Types infer_where(const OpCall& call) {
  TESSERA_REQUIRE(call.in[0].dtype == DType::bool_, "the condition is {}; it must be bool",
                  to_string(call.in[0].dtype));
  TESSERA_REQUIRE(call.in[1].dtype == call.in[2].dtype,
                  "the choices are {} and {}; they must agree, use cast()",
                  to_string(call.in[1].dtype), to_string(call.in[2].dtype));
  require_same_sizes(call);
  return {{broadcast_shape(call), call.in[1].dtype}};
}

Types infer_broadcast(const OpCall& call) {
  const Shape shape = shape_of(call.attrs);
  for (const Dim& d : call.in[0].shape) {
    TESSERA_REQUIRE(shape.has(d.name), "dim '{}' of {} is not in the result {}", d.name,
                    call.in[0].shape.to_string(), shape.to_string());
    const Dim& other = shape.dim(d.name);
    TESSERA_REQUIRE(
        other == d,
        "dim '{}' is {} in the operand but {} in the result; dims of one name must agree", d.name,
        size_text(d, other), size_text(other, d));
  }
  return {{shape, call.in[0].dtype}};
}

Tensor num(const Tensor& like, double v, Loc at = Loc::current()) {
  return constant(like.graph(), v, like.dtype(), {}, at);
}

/// The second derivative of gelu(x) = x s with s = sigmoid(v), v = c (x + b x^3):
/// s (1 - s) (2 v' + x ((1 - 2 s) v'^2 + v'')), where 1 - s = sigmoid(-v). It is 0 to within 2^-90
/// where |x| > 9.9; further out v'^2 leaves the range of a type.
Tensor gelu_second(const Tensor& given) {
  constexpr double c = 1.5957691216057308, b = 0.044715;
  const Tensor x = clip(given, -9.9, 9.9), v = (x + x * square(x) * b) * c, s = sigmoid(v),
               rest = sigmoid(-v);
  Tensor slope = (square(x) * (3 * b) + 1.0) * c;
  Tensor bend = (rest - s) * square(slope) + x * (6 * b * c);
  return s * rest * (slope * 2.0 + x * bend);
}

Tensor silu_gradient(const Tensor& x, const Tensor& y, const Tensor& g) {
  Tensor s = sigmoid(x);
  return g * (s + y * (1.0 - s));
}

using Infer = Types (*)(const OpCall& call);

/// The infer function of a row.
consteval Infer infer_of(DtypeRule rule, int operands) {
  const bool one = operands == 1;
  if (rule == DtypeRule::logical) return infer_logical;
  if (rule == DtypeRule::number) return one ? infer_number : infer_arithmetic;
  if (rule == DtypeRule::test) return one ? infer_test : infer_compare;
  if (rule == DtypeRule::any) return one ? infer_any : infer_binary;
  if (rule == DtypeRule::floating && one) return infer_float;
  throw "two operands have no such rule";
}

}  // namespace

// The rows of the table. Each function must be declared in ops.h, which has its default argument.
#define LINEAR(...) \
  { __VA_ARGS__ }
#define NOT_LINEAR \
  {}
#define NO_GRADIENT nullptr
#define GRADIENT(expr)                             \
  [](const GradCall& c) -> Grads {                 \
    [[maybe_unused]] const Tensor& x = c.in[0];    \
    [[maybe_unused]] const Tensor& y = c.out[0];   \
    [[maybe_unused]] const Tensor& g = c.grads[0]; \
    return Grads{expr};                            \
  }
#define GRADIENTS(expr_a, expr_b)                                            \
  [](const GradCall& c) -> Grads {                                           \
    [[maybe_unused]] const Tensor &a = c.in[0], &b = c.in[1], &y = c.out[0]; \
    const Tensor& g = c.grads[0];                                            \
    return Grads{sum_to(expr_a, a.shape()), sum_to(expr_b, b.shape())};      \
  }
#define UNARY(id, Formula, dtypes, cost, formula, linearity, derivative)       \
  static_assert(std::is_same_v<decltype(id(std::declval<Tensor>())), Tensor>); \
  extern const Op k_##id = {.name = #id,                                       \
                            .infer = infer_of(DtypeRule::dtypes, 1),           \
                            .linear = linearity,                               \
                            .gradient = derivative,                            \
                            .pointwise = true,                                 \
                            .code = PointwiseOp::id};                          \
  Tensor id(Tensor x, Loc at) { return one(k_##id, {x}, {}, at); }
#define BINARY(id, Formula, dtypes, cost, formula, linearity, derivatives)                   \
  static_assert(                                                                             \
      std::is_same_v<decltype(id(std::declval<Tensor>(), std::declval<Tensor>())), Tensor>); \
  extern const Op k_##id = {.name = #id,                                                     \
                            .infer = infer_of(DtypeRule::dtypes, 2),                         \
                            .linear = linearity,                                             \
                            .gradient = derivatives,                                         \
                            .pointwise = true,                                               \
                            .code = PointwiseOp::id};                                        \
  Tensor id(Tensor a, Tensor b, Loc at) { return one(k_##id, {a, b}, {}, at); }
#include "program/pointwise_table.inc"

// Every op that ops.h declares has a row.
#define X(id) static_assert(info_of(PointwiseOp::id).operands == 1);
TESSERA_UNARY_OPS(X)
#undef X
#define X(id) static_assert(info_of(PointwiseOp::id).operands == 2);
TESSERA_BINARY_OPS(X)
#undef X

extern const Op kIdentity = {.name = "identity",
                             .infer = infer_any,
                             .linear = {1u},
                             .gradient = GRADIENT(g),
                             .pointwise = true,
                             .code = PointwiseOp::copy,
                             .keeps_elements = true};
extern const Op kStopGradient = {.name = "stop_gradient",
                                 .infer = infer_any,
                                 .linear = {1u},
                                 .pointwise = true,
                                 .code = PointwiseOp::copy,
                                 .keeps_elements = true};
extern const Op kCast = {
    .name = "cast",
    .infer = infer_cast,
    .gradient = GRADIENT((is_floating(x.dtype()) ? cast(g, x.dtype()) : Tensor())),
    .pointwise = true,
    .code = PointwiseOp::cast,
    .keeps_elements = true,
    .converts = true};
extern const Op kBroadcast = {.name = "broadcast",
                              .infer = infer_broadcast,
                              .linear = {1u},
                              .gradient = GRADIENT(sum_to(g, x.shape())),
                              .pointwise = true,
                              .code = PointwiseOp::copy};

Tensor identity(Tensor x, Loc at) { return one(kIdentity, {x}, {}, at); }
Tensor stop_gradient(Tensor x, Loc at) { return one(kStopGradient, {x}, {}, at); }
Tensor cast(Tensor x, DType dtype, Loc at) {
  if (!x.empty() && x.dtype() == dtype) return x;
  return on_behalf_of("cast", at, [&] {
    return one(kCast, {x}, {{"dtype", static_cast<int64_t>(dtype)}}, at);
  });
}
Tensor broadcast(Tensor x, const Shape& shape, Loc at) {
  return on_behalf_of("broadcast", at,
                      [&] { return one(kBroadcast, {x}, source_attrs(shape, x.dtype()), at); });
}

namespace {
Grads where_gradient(const GradCall& c) {
  const Tensor& g = c.grads[0];
  return {Tensor(), sum_to(where(c.in[0], g, num(g, 0)), c.in[1].shape()),
          sum_to(where(c.in[0], num(g, 0), g), c.in[2].shape())};
}
}  // namespace
extern const Op kWhere = {.name = "where",
                          .infer = infer_where,
                          .linear = {6u},
                          .gradient = where_gradient,
                          .pointwise = true,
                          .code = PointwiseOp::where};
Tensor where(Tensor condition, Tensor a, Tensor b, Loc at) {
  return one(kWhere, {condition, a, b}, {}, at);
}

Tensor leaky_relu(Tensor x, double alpha, Loc at) {
  return on_behalf_of("leaky_relu", at, [&] {
    return where(greater(x, num(x, 0, at), at), x, mul(x, num(x, alpha, at), at), at);
  });
}
namespace {
constexpr double kSeluAlpha = 1.6732632423543772, kSeluScale = 1.0507009873554805;

/// x if x >= 0, else alpha (exp(x) - 1) = alpha 2 t / (1 - t) with t = tanh(x / 2), which is
/// accurate near 0. The branch that is not chosen is computed from 0, so it cannot overflow.
Tensor elu_of(const Tensor& in, double alpha, double scale) {
  const Tensor x = wide(in), positive = x >= 0.0;
  const Tensor t = tanh(where(positive, num(x, 0), x) * 0.5);
  const Tensor grown = t * (2 * alpha * scale) / (1.0 - t);
  return narrow(where(positive, scale == 1 ? x : x * scale, grown), in.dtype());
}
Grads elu_gradient(const GradCall& c, double alpha, double scale) {
  const Tensor x = wide(c.in[0]), g = wide(c.grads[0]), positive = x >= 0.0;
  const Tensor slope = exp(where(positive, num(x, 0), x)) * (alpha * scale);
  return {narrow(g * where(positive, num(x, scale), slope), c.in[0].dtype())};
}
}  // namespace

extern const Op kElu = {
    .name = "elu",
    .infer = infer_float,
    .gradient = [](const GradCall& c) { return elu_gradient(c, 1, 1); },
    .body = [](const Grads& in, const Attrs&) -> Grads { return {elu_of(in[0], 1, 1)}; }};
// Klambauer et al. 2017
extern const Op kSelu = {
    .name = "selu",
    .infer = infer_float,
    .gradient = [](const GradCall& c) { return elu_gradient(c, kSeluAlpha, kSeluScale); },
    .body = [](const Grads& in, const Attrs&) -> Grads {
      return {elu_of(in[0], kSeluAlpha, kSeluScale)};
    }};
Tensor elu(Tensor x, Loc at) { return one(kElu, {x}, {}, at); }
Tensor selu(Tensor x, Loc at) { return one(kSelu, {x}, {}, at); }

Tensor is_nan(Tensor x, Loc at) {
  return on_behalf_of("is_nan", at, [&] { return not_equal(x, x, at); });
}
Tensor is_inf(Tensor x, Loc at) {
  return on_behalf_of("is_inf", at, [&] {
    return logical_not(logical_or(is_finite(x, at), is_nan(x, at), at), at);
  });
}
Tensor logical_xor(Tensor a, Tensor b, Loc at) {
  const bool is_users = is_users_call(at);
  return on_behalf_of("logical_xor", at, [&] {
    if (is_users) require_no_misspelling(a.shape(), b.shape());
    return logical_and(logical_or(a, b, at), logical_not(logical_and(a, b, at), at), at);
  });
}
Tensor clip(Tensor x, double lo, double hi, Loc at) {
  return on_behalf_of("clip", at, [&] {
    TESSERA_REQUIRE(lo <= hi, "[clip] lo {} is above hi {} ({})", lo, hi, where(at));
    Tensor low = num(x, lo, at), high = num(x, hi, at);
    return where(less(x, low, at), low, where(greater(x, high, at), high, x, at), at);
  });
}

Tensor scalar_like(const char* op, At x, double value) {
  return on_behalf_of(
      op, x.at, [&] { return constant(x.tensor.graph(), value, x.tensor.dtype(), {}, x.at); });
}

Tensor quotient_like(At x, double value) {
  const DType dtype = x.tensor.dtype();
  TESSERA_REQUIRE(
      is_floating(dtype),
      "[div] {} is {}, and {:#} is a floating number: a fraction of integers is truncated; "
      "divide by a whole number (2, not 2.0), use floor_div(), or cast() to a floating dtype "
      "({})",
      x.tensor.name(), to_string(dtype), value, where(x.at));
  return scalar_like("div", x, value);
}

Tensor sum_to(Tensor g, const Shape& shape) {
  std::vector<std::string> extra;
  for (const Dim& d : g.shape()) {
    if (!shape.has(d.name)) extra.push_back(d.name);
  }
  Tensor sum = extra.empty() ? g : reduce_sum(g, extra);
  for (const Dim& d : shape) {
    if (!sum.shape().has(d.name)) return broadcast(sum, shape);
  }
  return sum.shape() == shape ? sum : transpose(sum, shape);
}

Tensor one_hot(Tensor indices, const Dim& dim, double on, double off, DType dtype, Loc at) {
  return on_behalf_of("one_hot", at, [&] {
    Graph& g = indices.graph();
    require_index({indices.shape(), indices.dtype()});
    TESSERA_REQUIRE(!indices.shape().has(dim.name),
                    "dim '{}' is also in the indices {}; rename it there", dim.name,
                    indices.shape().to_string());
    Tensor hit = equal(indices, iota(g, dim, indices.dtype(), at), at);
    return where(hit, constant(g, on, dtype, {}, at), constant(g, off, dtype, {}, at), at);
  });
}

}  // namespace tessera
