// softmax and norms: composites. The body is the definition. The gradient is the closed formula,
// written with the same subexpressions as the body, which are then computed once.
#include "ir/source_ops.h"
#include "ops/infer.h"
#include "ops/precision.h"
#include "ops/sum_to.h"
#include "tessera/ops.h"

namespace tessera {

namespace {

using Tensors = std::vector<Tensor>;

std::vector<std::string> axes_of(const Attrs& attrs) {
  return attrs.get<std::vector<std::string>>("axes");
}

std::vector<ValueType> infer_softmax(const OpCall& call) {
  TESSERA_REQUIRE(is_floating(call.in[0].dtype), "the operand is {}; it must be floating",
                  to_string(call.in[0].dtype));
  require_dims(call.in[0].shape, axes_of(call.attrs), "normalized");
  return {call.in[0]};
}

Tensors softmax_body(const Tensors& in, const Attrs& attrs) {
  const Axes axes(axes_of(attrs));
  const Tensor x = wide(in[0]), e = exp(x - reduce_max(x, axes));
  return {narrow(e / reduce_sum(e, axes), in[0].dtype())};
}

// dx = y (g - sum(g y)).
Tensors softmax_gradient(const GradCall& c) {
  const Axes axes(axes_of(c.attrs));
  const Tensor y = wide(c.out[0]), g = wide(c.grads[0]);
  return {narrow(y * (g - reduce_sum(g * y, axes)), c.in[0].dtype())};
}

Tensors log_softmax_body(const Tensors& in, const Attrs& attrs) {
  const Axes axes(axes_of(attrs));
  const Tensor x = wide(in[0]), shifted = x - reduce_max(x, axes);
  return {narrow(shifted - log(reduce_sum(exp(shifted), axes)), in[0].dtype())};
}

// dx = g - softmax(x) sum(g).
Tensors log_softmax_gradient(const GradCall& c) {
  const Axes axes(axes_of(c.attrs));
  const Tensor g = wide(c.grads[0]);
  return {narrow(g - exp(wide(c.out[0])) * reduce_sum(g, axes), c.in[0].dtype())};
}

void require_vector(const ValueType& type, const ValueType& x, const std::string& dim,
                    const char* what) {
  TESSERA_REQUIRE(type.shape.rank() == 1 && type.shape.has(dim),
                  "the {} is {}; it must have the one dim '{}'", what, type.shape.to_string(), dim);
  TESSERA_REQUIRE(type.dtype == x.dtype, "the {} is {} but the operand is {}; use cast()", what,
                  to_string(type.dtype), to_string(x.dtype));
}

std::vector<ValueType> infer_norm(const OpCall& call) {
  const auto& dim = call.attrs.get<std::string>("dim");
  const double eps = call.attrs.get<double>("eps");
  TESSERA_REQUIRE(eps >= 0, "eps is {}; it must be at least 0", eps);
  TESSERA_REQUIRE(is_floating(call.in[0].dtype), "the operand is {}; it must be floating",
                  to_string(call.in[0].dtype));
  require_dims(call.in[0].shape, {dim}, "normalized");
  require_same_sizes(call);
  require_vector(call.in[1], call.in[0], dim, "scale");
  if (call.in.size() > 2) require_vector(call.in[2], call.in[0], dim, "bias");
  return {call.in[0]};
}

struct Normalized {
  Tensor centered, reciprocal;  // (x - mean), 1 / sqrt(var + eps)
};
Normalized normalize(const Tensor& x, const std::string& dim, double eps, bool center) {
  Tensor centered = center ? x - reduce_mean(x, dim) : x;
  return {centered, rsqrt(reduce_mean(square(centered), dim) + eps)};
}

Tensors layer_norm_body(const Tensors& in, const Attrs& attrs) {
  const Normalized n =
      normalize(wide(in[0]), attrs.get<std::string>("dim"), attrs.get<double>("eps"), true);
  return {narrow(n.centered * n.reciprocal * wide(in[1]) + wide(in[2]), in[0].dtype())};
}

Tensors rms_norm_body(const Tensors& in, const Attrs& attrs) {
  const Normalized n =
      normalize(wide(in[0]), attrs.get<std::string>("dim"), attrs.get<double>("eps"), false);
  return {narrow(n.centered * n.reciprocal * wide(in[1]), in[0].dtype())};
}

// With h = centered * r and u = g * scale: dx = r (u - mean(u) - h mean(u h)); without the mean(u)
// term if not centered.
Tensors norm_gradient(const GradCall& c, bool center) {
  const auto& dim = c.attrs.get<std::string>("dim");
  const Normalized n = normalize(wide(c.in[0]), dim, c.attrs.get<double>("eps"), center);
  Tensor g = wide(c.grads[0]), h = n.centered * n.reciprocal, u = g * wide(c.in[1]);
  Tensor inner = u - h * reduce_mean(u * h, dim);
  if (center) inner = inner - reduce_mean(u, dim);
  Tensors grads = {narrow(n.reciprocal * inner, c.in[0].dtype()),
                   narrow(sum_to(g * h, c.in[1].shape()), c.in[1].dtype())};
  if (center) grads.push_back(narrow(sum_to(g, c.in[2].shape()), c.in[2].dtype()));
  return grads;
}

Attrs norm_attrs(const std::string& dim, double eps) { return {{"dim", dim}, {"eps", eps}}; }

}  // namespace

extern const Op kSoftmax = {
    .name = "softmax", .infer = infer_softmax, .gradient = softmax_gradient, .body = softmax_body};
extern const Op kLogSoftmax = {.name = "log_softmax",
                               .infer = infer_softmax,
                               .gradient = log_softmax_gradient,
                               .body = log_softmax_body};
extern const Op kLayerNorm = {.name = "layer_norm",
                              .infer = infer_norm,
                              .gradient = [](const GradCall& c) { return norm_gradient(c, true); },
                              .body = layer_norm_body};
extern const Op kRmsNorm = {.name = "rms_norm",
                            .infer = infer_norm,
                            .gradient = [](const GradCall& c) { return norm_gradient(c, false); },
                            .body = rms_norm_body};

Tensor softmax(Tensor x, const Axes& axes, Loc at) {
  return one(kSoftmax, {x}, {{"axes", axes.names()}}, at);
}
Tensor log_softmax(Tensor x, const Axes& axes, Loc at) {
  return one(kLogSoftmax, {x}, {{"axes", axes.names()}}, at);
}
Tensor layer_norm(Tensor x, const std::string& dim, Tensor scale, Tensor bias, double eps, Loc at) {
  return one(kLayerNorm, {x, scale, bias}, norm_attrs(dim, eps), at);
}
Tensor rms_norm(Tensor x, const std::string& dim, Tensor scale, double eps, Loc at) {
  return one(kRmsNorm, {x, scale}, norm_attrs(dim, eps), at);
}

}  // namespace tessera
