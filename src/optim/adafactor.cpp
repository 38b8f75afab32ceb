// The second moment of a matrix is approximated from its row and column means. For a gradient g of
// [d0, d1], where d0 is the larger dim, row = mean over d0 of g^2, column = mean over d1 of g^2,
// and the moment is row * column / mean(row). The state is two vectors instead of a matrix.
#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "optim/state.h"

namespace tessera {

namespace {

using optim::as_dtype_of, optim::decay_of, optim::state_of, optim::wide;

bool is_stacked(const AdafactorOptions& o, const Dim& dim) {
  return std::find(o.stacked.begin(), o.stacked.end(), dim.name) != o.stacked.end();
}

/// The names of the largest and second largest dim, or none.
std::vector<std::string> factored_dims(const AdafactorOptions& o, const Shape& shape) {
  std::vector<Dim> dims;
  for (const Dim& d : shape) {
    if (!is_stacked(o, d)) dims.push_back(d);
  }
  std::stable_sort(dims.begin(), dims.end(),
                   [](const Dim& a, const Dim& b) { return a.size > b.size; });
  if (dims.size() < 2 || dims[1].size < o.factor_from) return {};
  return {dims[0].name, dims[1].name};
}

/// Root mean square over all but the stacked dims.
Tensor root_mean_square(Tensor x, const AdafactorOptions& o) {
  std::vector<std::string> axes;
  for (const Dim& d : x.shape()) {
    if (!is_stacked(o, d)) axes.push_back(d.name);
  }
  Tensor squares = square(x);
  return sqrt(axes.empty() ? squares : reduce_mean(squares, axes));
}

/// The weight of a step's mean in the moving average. That of the average is 1 minus it, which is
/// near 1: computed first, it would leave few digits.
Tensor share_of_step(Tensor step, const AdafactorOptions& o) {
  if (o.decay != 0) return constant(step.graph(), 1 - o.decay, step.dtype());
  if (o.beta2 != 0) return optim::bias_correction(step, o.beta2) * (1 - o.beta2);
  return exp(log(step - static_cast<double>(o.decay_offset)) * -o.decay_exponent);
}

/// Updates a moving average with the mean of this step and returns it.
Tensor moving(Tensor p, const char* what, Tensor mean, Tensor share) {
  Tensor state = state_of(p, what, mean.shape());
  Tensor next = state * (1.0 - share) + mean * share;
  p.graph().update(state, next);
  return next;
}

/// The gradient divided by the root of its second moment.
Tensor normalized(Tensor p, Tensor grad, Tensor share, const AdafactorOptions& o) {
  Tensor squares = square(grad) + o.eps1;
  const std::vector<std::string> dims = factored_dims(o, p.shape());
  if (dims.empty()) return grad * rsqrt(moving(p, "adafactor_v", squares, share));
  Tensor row = moving(p, "adafactor_row", reduce_mean(squares, dims[0]), share);
  Tensor column = moving(p, "adafactor_column", reduce_mean(squares, dims[1]), share);
  return grad * rsqrt(row / reduce_mean(row, dims[1])) * rsqrt(column);
}

void check_options(const AdafactorOptions& o, Loc at) {
  auto at_least_0 = [&](const char* option, double value, double below = INFINITY) {
    optim::require_in("adafactor", option, value, 0, below, at);
  };
  at_least_0("beta1", o.beta1, 1);
  at_least_0("beta2", o.beta2, 1);
  at_least_0("decay", o.decay, 1);
  at_least_0("weight_decay", o.weight_decay);
  TESSERA_REQUIRE(
      o.beta2 == 0 || o.decay == 0,
      "[adafactor] beta2 {} and decay {} are both given; the second moment decays in one way "
      "({})",
      o.beta2, o.decay, where(at));
  at_least_0("decay_exponent", o.decay_exponent);
  at_least_0("clip", o.clip);
  at_least_0("eps1", o.eps1);
  at_least_0("eps2", o.eps2);
}

void check_names(Graph& g, const AdafactorOptions& o, Loc at) {
  optim::require_matches(g, "adafactor", "unscaled", o.unscaled, at);
  std::vector<std::string> dims;
  for (const Tensor& parameter : g.parameters()) {
    for (const Dim& d : parameter.shape()) dims.push_back(d.name);
  }
  for (const std::string& dim : o.stacked) {
    const bool known = std::find(dims.begin(), dims.end(), dim) != dims.end();
    TESSERA_REQUIRE(known, "[adafactor] stacked: no parameter has a dim '{}'{} ({})", dim,
                    suggestion(dim, dims), where(at));
  }
}

}  // namespace

Optimizer adafactor(const AdafactorOptions& o, Loc at) {
  check_options(o, at);
  return [=](Graph& g, Tensor p, Tensor grad, Tensor lr, Tensor step) {
    check_names(g, o, at);
    Tensor t = as_dtype_of(step, grad), rate = lr;
    const bool scaled = o.scale_by_parameter && !optim::any_match(o.unscaled, p);
    if (o.relative_step) {
      rate = rate * minimum(rsqrt(t), constant(g, 0.01, grad.dtype())) *
             (o.scale_by_parameter ? 1.0 : 0.05);
    }
    Tensor size = rate;
    if (scaled)
      size = maximum(root_mean_square(wide(p), o), constant(g, o.eps2, grad.dtype())) * rate;
    Tensor change = normalized(p, grad, share_of_step(t, o), o);
    if (o.clip > 0) {
      Tensor excess = root_mean_square(change, o) * (1 / o.clip);
      change = change / maximum(excess, constant(g, 1, grad.dtype()));
    }
    change = change * size;
    if (o.beta1 > 0) {
      Tensor m = state_of(p, "adafactor_m");
      change = m * o.beta1 + change * (1 - o.beta1);
      g.update(m, change);
    }
    const double decay = decay_of(p, o.weight_decay);
    if (decay != 0) change = change + wide(p) * (rate * decay);
    g.update(p, wide(p) - change);
  };
}

}  // namespace tessera
