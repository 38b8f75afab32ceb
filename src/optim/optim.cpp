#include "tessera/optim.h"

#include <cmath>

#include "base/fail.h"
#include "tessera/op.h"

namespace tessera {

namespace {

Initializer zeros() {
  return [](Graph& g, const Shape& shape, DType dtype) { return constant(g, 0, dtype, shape); };
}

std::string state_name(Tensor parameter, const char* what) { return parameter.name() + "." + what; }

/// Biases and scales start as constants, whatever their rank (heads, d_head).
double decay_of(Tensor parameter, double weight_decay) {
  const Graph& g = parameter.graph();
  const int first = g.find_stored(parameter.id())->init;
  const bool constant = g.producer(first).op->name == "constant";
  return parameter.shape().rank() >= 2 && !constant ? weight_decay : 0;
}

Tensor decayed_gradient(Tensor p, Tensor g, double weight_decay) {
  const double decay = decay_of(p, weight_decay);
  return decay == 0 ? g : g + p * decay;
}

}  // namespace

Optimizer sgd(double weight_decay) {
  return [=](Graph& g, Tensor p, Tensor grad, Tensor lr, Tensor) {
    g.update(p, p - decayed_gradient(p, grad, weight_decay) * lr);
  };
}

Optimizer momentum(double mu, double weight_decay) {
  return [=](Graph& g, Tensor p, Tensor grad, Tensor lr, Tensor) {
    Tensor v = g.state(state_name(p, "velocity"), p.shape(), zeros(), p.dtype());
    Tensor next = v * mu + decayed_gradient(p, grad, weight_decay);
    g.update(v, next);
    g.update(p, p - next * lr);
  };
}

Optimizer adam(const AdamOptions& o) {
  return [=](Graph& g, Tensor p, Tensor grad, Tensor lr, Tensor step) {
    Tensor m = g.state(state_name(p, "adam_m"), p.shape(), zeros(), p.dtype());
    Tensor v = g.state(state_name(p, "adam_v"), p.shape(), zeros(), p.dtype());
    Tensor t = step.dtype() == p.dtype() ? step : cast(step, p.dtype());
    Tensor gradient = o.decoupled ? grad : decayed_gradient(p, grad, o.weight_decay);
    Tensor m_next = m * o.beta1 + gradient * (1 - o.beta1);
    Tensor v_next = v * o.beta2 + square(gradient) * (1 - o.beta2);
    Tensor m_scale = 1.0 / (1.0 - exp(t * std::log(o.beta1)));
    Tensor v_scale = 1.0 / (1.0 - exp(t * std::log(o.beta2)));
    Tensor change = m_next * m_scale / (sqrt(v_next * v_scale) + o.eps);
    const double decay = o.decoupled ? decay_of(p, o.weight_decay) : 0;
    if (decay != 0) change = change + p * decay;
    g.update(m, m_next);
    g.update(v, v_next);
    g.update(p, p - change * lr);
  };
}

Minimized minimize(Tensor loss, Tensor lr, const Optimizer& optimizer,
                   const MinimizeOptions& options, Loc at) {
  Graph& g = loss.graph();
  const std::vector<Tensor> parameters = g.parameters();
  require(!parameters.empty(), "[minimize] the model has no parameters ({})", where(at));
  std::vector<Tensor> grads = gradients(loss, parameters, at);
  for (size_t i = 0; i < grads.size(); ++i) {
    g.mark_gradient(grads[i]);
    grads[i].named(parameters[i].name() + ".grad");
  }
  PurposeScope purpose(g, Purpose::state);
  Scope scope(g, "optimizer");
  Tensor squares;
  for (const Tensor& grad : grads) {
    PreferScope prefer(g, grad);
    Tensor wide = grad.dtype() == DType::bfloat16 ? cast(grad, DType::float32) : grad;
    Tensor square_sum = sum_all(square(wide));
    squares = squares ? squares + square_sum : square_sum;
  }
  Tensor norm = sqrt(squares).named("gradient_norm");
  Tensor step = g.state("step", {}, zeros(), DType::float32);
  Tensor next = step + 1.0;
  g.update(step, next);
  Tensor factor;
  if (options.clip > 0)
    factor = minimum(options.clip / (norm + 1e-6), constant(g, 1, norm.dtype()));
  for (size_t i = 0; i < parameters.size(); ++i) {
    Tensor grad = grads[i];
    PreferScope prefer(g, parameters[i]);
    if (factor)
      grad = grad * (factor.dtype() == grad.dtype() ? factor : cast(factor, grad.dtype()));
    Tensor rate = lr.dtype() == grad.dtype() ? lr : cast(lr, grad.dtype());
    optimizer(g, parameters[i], grad, rate, next);
  }
  return {norm, std::move(grads)};
}

double Schedule::at(int64_t step) const {
  const double s = static_cast<double>(step), w = static_cast<double>(warmup);
  if (step < warmup) return lr * (s + 1) / w;
  if (kind == "constant") return lr;
  if (kind == "rsqrt") return lr * std::sqrt(std::max(w, 1.0) / std::max(s, std::max(w, 1.0)));
  const double span = std::max<double>(1, static_cast<double>(steps) - w);
  const double done = std::min(1.0, (s - w) / span);
  if (kind == "linear") return lr * (1 - (1 - floor) * done);
  require(kind == "cosine", "unknown schedule '{}'{}", kind,
          suggestion(kind, {"constant", "linear", "cosine", "rsqrt"}));
  return lr * (floor + (1 - floor) * 0.5 * (1 + std::cos(M_PI * done)));
}

}  // namespace tessera
