// Adam and its relatives: moving averages of gradients and, except for Lion, of their squares.
#include <cmath>

#include "optim/state.h"

namespace tessera {

namespace {

using optim::as_dtype_of, optim::bias_correction, optim::decay_of, optim::state_of, optim::wide;

struct AdamMoments {
  double beta1, beta2, eps;
  bool bias_correction;
};

/// Updates the moving averages of the gradient and its square. Returns m / (sqrt(v) + eps).
Tensor adam_change(Tensor p, Tensor grad, Tensor step, const AdamMoments& o) {
  Graph& g = p.graph();
  Tensor m = state_of(p, "adam_m"), v = state_of(p, "adam_v");
  Tensor m_next = m * o.beta1 + grad * (1 - o.beta1);
  Tensor v_next = v * o.beta2 + square(grad) * (1 - o.beta2);
  g.update(m, m_next);
  g.update(v, v_next);
  if (!o.bias_correction) return m_next / (sqrt(v_next) + o.eps);
  Tensor t = as_dtype_of(step, grad);
  Tensor m_scale = bias_correction(t, o.beta1), v_scale = bias_correction(t, o.beta2);
  return m_next * m_scale / (sqrt(v_next * v_scale) + o.eps);
}

template <class Options>
void check_moments(const char* optimizer, const Options& o, double eps, Loc at) {
  optim::require_in(optimizer, "beta1", o.beta1, 0, 1, at);
  optim::require_in(optimizer, "beta2", o.beta2, 0, 1, at);
  optim::require_in(optimizer, "eps", eps, 0, INFINITY, at);
  optim::require_in(optimizer, "weight_decay", o.weight_decay, 0, INFINITY, at);
}

}  // namespace

Optimizer adam(const AdamOptions& o, Loc at) {
  check_moments("adam", o, o.eps, at);
  return [=](Graph& g, Tensor p, Tensor grad, Tensor lr, Tensor step) {
    optim::require_matches(g, "adam", "no_decay", o.no_decay, at);
    const double decay = decay_of(p, o.weight_decay, o.no_decay, o.decay_all);
    if (decay != 0 && !o.decoupled) grad = grad + wide(p) * decay;
    Tensor change = adam_change(p, grad, step, {o.beta1, o.beta2, o.eps, o.bias_correction});
    if (decay != 0 && o.decoupled) change = change + wide(p) * decay;
    g.update(p, wide(p) - change * lr);
  };
}

Optimizer lamb(const LambOptions& o, Loc at) {
  check_moments("lamb", o, o.eps, at);
  return [=](Graph& g, Tensor p, Tensor grad, Tensor lr, Tensor step) {
    Tensor change = adam_change(p, grad, step, {o.beta1, o.beta2, o.eps, true});
    const double decay = decay_of(p, o.weight_decay);
    if (decay != 0) change = change + wide(p) * decay;
    Tensor zero = constant(g, 0, grad.dtype()), one = constant(g, 1, grad.dtype());
    Tensor size = sqrt(sum_all(square(wide(p)))), length = sqrt(sum_all(square(change)));
    Tensor usable = logical_and(size > zero, length > zero);
    Tensor ratio = where(usable, size / where(usable, length, one), one);
    g.update(p, wide(p) - change * (ratio * lr));
  };
}

Optimizer lion(const LionOptions& o, Loc at) {
  check_moments("lion", o, 0, at);
  return [=](Graph& g, Tensor p, Tensor grad, Tensor lr, Tensor) {
    Tensor m = state_of(p, "lion_m");
    Tensor change = sign(m * o.beta1 + grad * (1 - o.beta1));
    const double decay = decay_of(p, o.weight_decay);
    if (decay != 0) change = change + wide(p) * decay;
    g.update(m, m * o.beta2 + grad * (1 - o.beta2));
    g.update(p, wide(p) - change * lr);
  };
}

}  // namespace tessera
