// Optimizers, gradient clipping, learning-rate schedules.
#pragma once

#include <functional>
#include <string>

#include "tessera/graph.h"
#include "tessera/ops.h"

namespace tessera {

/// Adds the update of one parameter, given its gradient, the learning rate (a scalar) and the
/// number of this step (a float32 scalar, from 1). State is made with Graph::state() and laid out
/// like the parameter by the @state rules. An optimizer of a user's own is such a function.
using Optimizer =
    std::function<void(Graph& g, Tensor parameter, Tensor gradient, Tensor lr, Tensor step)>;

/// p - lr g.
Optimizer sgd(double weight_decay = 0);
/// v = mu v + g; p - lr v (Sutskever et al. 2013, in the form of PyTorch and Keras; no delay).
Optimizer momentum(double mu = 0.9, double weight_decay = 0);

struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0;  ///< of parameters with two dims or more that start as anything but one
                            ///< constant: scales of norms and biases do not decay
  bool decoupled =
      true;  ///< AdamW (Loshchilov & Hutter 2019); else the decay is added to the gradient
};
/// Adam with bias correction (Kingma & Ba 2015, algorithm 1).
Optimizer adam(const AdamOptions& options = {});

struct MinimizeOptions {
  double clip = 0;  ///< greatest global norm of all gradients; 0: no clipping
};
struct Minimized {
  Tensor gradient_norm;           ///< global L2 norm before clipping, a scalar
  std::vector<Tensor> gradients;  ///< of Graph::parameters(), before clipping: "<parameter>.grad"
};
/// Adds the gradients of `loss` (summed if it is not a scalar) by all parameters, and their
/// updates.
Minimized minimize(Tensor loss, Tensor lr, const Optimizer& optimizer,
                   const MinimizeOptions& options = {}, Loc at = Loc::current());

/// The learning rate of a step (from 0), on the host.
struct Schedule {
  std::string kind = "cosine";  ///< constant | linear | cosine | rsqrt
  double lr = 1e-3;             ///< peak
  int64_t warmup = 0;           ///< steps of linear rise from 0
  int64_t steps = 1;            ///< where linear and cosine end
  double floor = 0.1;           ///< of linear and cosine, as a share of lr
  double at(int64_t step) const;
};

}  // namespace tessera
