// Each sample has a mean and a variance of its own. The mean of x is that of the samples' means,
// and the mean of its squares that of theirs (Chan, Golub & LeVeque 1983). So no rank waits for the
// mean of all to sum deviations: ranks exchange both sums at once, or gather the moments of all
// samples, as a rule for "moments" says. What cancels in the end is in float64.
//
// The rest is one composite, because the gradient through mean and variance is shorter as a whole.
// With c = x - mean, r = 1 / sqrt(variance + eps) and g, all means over the axes:
//     dx = r scale (g - mean(g) - c r^2 mean(g c)).
// So ranks exchange the two sums of backward together. Step by step the gradient of the mean would
// also need the sum of c, which is 0, after those two.
#include "ops/infer.h"
#include "ops/precision.h"
#include "ops/sum_to.h"

namespace tessera {

namespace {

using Tensors = std::vector<Tensor>;

std::vector<std::string> normalized_axes(const Attrs& attrs) {
  return attrs.get<std::vector<std::string>>("axes");
}

std::vector<ValueType> infer_batch_norm(const OpCall& call) {
  const ValueType &x = call.in[0], &scale = call.in[1];
  TESSERA_REQUIRE(is_floating(x.dtype), "x is {}; it must be floating", to_string(x.dtype));
  require_dims(x.shape, normalized_axes(call.attrs), "normalized");
  const Shape rest = x.shape.without(normalized_axes(call.attrs));
  for (const Shape& own : {scale.shape, call.in[2].shape}) {
    TESSERA_REQUIRE(own.rank() == rest.rank() && rest.without(own.names()).rank() == 0,
                    "scale {} and bias {} of x {}; they have its dims but those normalized, {}",
                    scale.shape.to_string(), call.in[2].shape.to_string(), x.shape.to_string(),
                    rest.to_string());
  }
  require_same_sizes(call);
  return {x, scale, scale};
}

std::string moments_dim(const std::vector<std::string>& axes) { return axes[0] + "_moments"; }

/// The mean of each sample and that of its squares, in float64.
Tensor moments_of_samples(Tensor x, const std::vector<std::string>& axes) {
  const std::vector<std::string> places(axes.begin() + 1, axes.end());
  Tensor mean = x, variance;
  if (!places.empty()) {
    mean = reduce_mean(x, places);
    variance = narrow(reduce_mean(square(x - mean), places), DType::float64);
  }
  mean = narrow(mean, DType::float64);
  const Tensor of_squares = variance.empty() ? square(mean) : square(mean) + variance,
               is_mean = equal(iota(x.graph(), Dim(moments_dim(axes), 2)), 0);
  return where(is_mean, mean, of_squares).uniquely_named("moments");
}

Tensors batch_norm_body(const Tensors& in, const Attrs& attrs) {
  const std::vector<std::string> axes = normalized_axes(attrs);
  const DType dtype = in[1].dtype();
  const Tensors moments = unstack(reduce_mean(in[3], axes[0]), moments_dim(axes));
  const Tensor x = narrow(in[0], dtype), mean = narrow(moments[0], dtype),
               variance = narrow(relu(moments[1] - square(moments[0])), dtype),
               factor = rsqrt(variance + attrs.get<double>("eps")) * in[1];
  return {narrow((x - mean) * factor + in[2], in[0].dtype()), sum_to(mean, in[1].shape()),
          sum_to(variance, in[1].shape())};
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

// The gradient of x is through its moments too, so these have none. Gradients of the mean and the
// variance come with a gradient of this one: with n elements a statistic, d mean / dx = 1 / n and
// d variance / dx = 2 c / n.
Tensors batch_norm_gradient(const GradCall& c) {
  const Axes axes(normalized_axes(c.attrs));
  const Tensor &of_mean = c.grads[1], &of_variance = c.grads[2];
  const Tensor x = narrow(c.in[0], c.in[1].dtype()), centered = x - c.out[1],
               elements = elements_of(x, axes);
  Tensor dx, of_scale, of_bias;
  if (!c.grads[0].empty()) {
    const Tensor g = narrow(c.grads[0], x.dtype()), both = g * centered,
                 r = rsqrt(c.out[2] + c.attrs.get<double>("eps")), sum = reduce_sum(g, axes),
                 sum_both = reduce_sum(both, axes), factor = r * c.in[1], share = factor / elements;
    dx = g * factor - centered * (square(r) * share * sum_both) - share * sum;
    of_scale = sum_to(sum_both * r, c.in[1].shape());
    of_bias = sum_to(sum, c.in[2].shape());
  }
  const auto add_to_dx = [&dx](const Tensor& more) { dx = dx.empty() ? more : dx + more; };
  if (!of_variance.empty()) add_to_dx(centered * (of_variance * 2.0 / elements));
  if (!of_mean.empty()) add_to_dx(broadcast(of_mean / elements, x.shape()));
  return {narrow(sum_to(dx, x.shape()), c.in[0].dtype()), of_scale, of_bias, Tensor()};
}

}  // namespace

extern const Op kBatchNorm = {.name = "batch_norm",
                              .infer = infer_batch_norm,
                              .gradient = batch_norm_gradient,
                              .body = batch_norm_body};

BatchNormed batch_normed(Tensor x, Tensor scale, Tensor bias, const Axes& axes, double eps,
                         Loc at) {
  return on_behalf_of("batch_norm", at, [&]() -> BatchNormed {
    const Tensor moments = moments_of_samples(narrow(x, scale.dtype()), axes.names());
    const Tensors out = x.graph().add(kBatchNorm, {x, scale, bias, moments},
                                      {{"axes", axes.names()}, {"eps", eps}}, at);
    return {out[0], out[1], out[2]};
  });
}

}  // namespace tessera
