// One composite, because the gradient through mean and variance is shorter as a whole. With
// c = x - mean, r = 1 / sqrt(variance + eps) and g, all means over the axes:
//     dx = r scale (g - mean(g) - c r^2 mean(g c)).
// So ranks exchange the two sums of backward together. Step by step the gradient of the mean would
// also need the sum of c, which is 0, after those two.
#include "nn/batch_norm.h"

#include "base/fail.h"
#include "nn/stored.h"
#include "tessera/op.h"

namespace tessera::nn {

namespace {

using Tensors = std::vector<Tensor>;

std::vector<std::string> normalized_axes(const Attrs& attrs) {
  return attrs.get<std::vector<std::string>>("axes");
}

std::vector<ValueType> infer_batch_norm(const OpCall& call) {
  const ValueType &x = call.in[0], &scale = call.in[1];
  require(is_floating(x.dtype), "x is {}; it must be floating", to_string(x.dtype));
  return {x, scale, scale};
}

Tensors batch_norm_body(const Tensors& in, const Attrs& attrs) {
  const Axes axes(normalized_axes(attrs));
  const Tensor x = read_as(in[0], in[1].dtype()), mean = reduce_mean(x, axes), centered = x - mean,
               variance = reduce_mean(square(centered), axes),
               factor = rsqrt(variance + attrs.get<double>("eps")) * in[1];
  return {read_as(centered * factor + in[2], in[0].dtype()), mean, variance};
}

/// How many elements of x a statistic is of.
Tensor elements_of(const Tensor& x, const Axes& axes) {
  double fixed = 1;
  std::vector<Dim> bounded;
  for (const std::string& name : axes.names()) {
    const Dim& dim = x.dim(name);
    dim.is_bounded ? bounded.push_back(dim) : void(fixed *= static_cast<double>(dim.size));
  }
  Tensor all = constant(x.graph(), fixed, x.dtype());
  for (const Dim& dim : bounded) all = all * dim_size(x.graph(), dim, x.dtype());
  return all;
}

// The statistics follow x outside of the gradient (nn::batch_norm), so none comes from them.
Tensors batch_norm_gradient(const GradCall& c) {
  check(c.grads[1].empty() && c.grads[2].empty(), "a gradient of a batch norm's statistics");
  const Axes axes(normalized_axes(c.attrs));
  const Tensor x = read_as(c.in[0], c.in[1].dtype()), g = read_as(c.grads[0], c.in[1].dtype()),
               centered = x - c.out[1], both = g * centered,
               r = rsqrt(c.out[2] + c.attrs.get<double>("eps"));
  const Tensor sum = reduce_sum(g, axes), sum_both = reduce_sum(both, axes), factor = r * c.in[1],
               share = factor / elements_of(x, axes);
  const Tensor dx = g * factor - centered * (square(r) * share * sum_both) - share * sum;
  return {read_as(dx, c.in[0].dtype()), sum_both * r, sum};
}

constinit const Op kBatchNorm = {.name = "batch_norm",
                                 .infer = infer_batch_norm,
                                 .gradient = batch_norm_gradient,
                                 .body = batch_norm_body};

}  // namespace

BatchNormed batch_normed(Tensor x, Tensor scale, Tensor bias, const Axes& axes, double eps,
                         Loc at) {
  const Tensors out =
      x.graph().add(kBatchNorm, {x, scale, bias}, {{"axes", axes.names()}, {"eps", eps}}, at);
  return {out[0], out[1], out[2]};
}

}  // namespace tessera::nn
