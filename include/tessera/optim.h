// Optimizers, gradient clipping, learning-rate schedules.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/graph.h"
#include "tessera/loops.h"
#include "tessera/ops.h"

namespace tessera {

/// Adds the update of one parameter, given its gradient, the learning rate (a scalar) and the
/// number of this step (a float32 scalar, from 1), in the scope "optimizer.<parameter>". The
/// gradient of a parameter stored in 16 bits is float32, as state and new values are. State is
/// made with Graph::state(), named "optimizer.<parameter>.<what>" and laid out like the parameter
/// by the @state rules. An optimizer of a user's own is such a function. Those here throw usage
/// errors for options out of range, and, when they are used, for globs and dims that no parameter
/// has.
using Optimizer =
    std::function<void(Graph& g, Tensor parameter, Tensor gradient, Tensor lr, Tensor step)>;

/// p - lr g.
Optimizer sgd(double weight_decay = 0);
struct MomentumOptions {
  double mu = 0.9, weight_decay = 0;
  bool rate_in_velocity = false;  ///< v = mu v + lr g; p - v, as in Keras and Mesh TensorFlow: the
                                  ///< same as long as lr does not change
};
/// v = mu v + g; p - lr v (Sutskever et al. 2013, in the form of PyTorch; no delay).
Optimizer momentum(double mu = 0.9, double weight_decay = 0, Loc at = Loc::current());
Optimizer momentum(const MomentumOptions& options, Loc at = Loc::current());

struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0;  ///< of parameters with two dims or more that start as anything but one
                            ///< constant: scales of norms and biases do not decay
  std::vector<std::string> no_decay = {};  ///< globs of further parameters that do not decay
  bool decoupled =
      true;  ///< AdamW (Loshchilov & Hutter 2019); else the decay is added to the gradient
  bool bias_correction = true;  ///< false: as in BERT (Devlin et al. 2019) and Mesh TensorFlow,
                                ///< there with beta2 0.999 and eps 1e-6
  bool decay_all = false;       ///< every parameter but those of no_decay, as in both
};
/// Adam (Kingma & Ba 2015, algorithm 1).
Optimizer adam(const AdamOptions& options = {}, Loc at = Loc::current());

struct AdafactorOptions {
  double decay_exponent = 0.8;  ///< the second moment decays by 1 - (step - decay_offset)^-0.8
  int64_t decay_offset = 0;     ///< steps before this training began, of a model trained before
  double beta2 = 0;             ///< if not 0: it decays as in Adam with bias correction instead
  double decay = 0;             ///< if not 0: it decays by this instead
  double beta1 = 0;             ///< of the mean of the updates; 0: there is none, nor state for it
  double clip = 1;              ///< greatest root mean square of an update; 0: any
  double eps1 = 1e-30;          ///< added to the squared gradient
  double eps2 = 1e-3;           ///< least scale of a parameter
  int64_t factor_from = 128;    ///< least size of the second largest dim for a factored moment
  bool scale_by_parameter = true;          ///< lr counts in root mean squares of the parameter
  std::vector<std::string> unscaled = {};  ///< globs of parameters of which it does not
  std::vector<std::string> stacked = {};   ///< dims along which parameters are stacked (layers):
                                           ///< neither factored nor averaged over
  bool relative_step = false;  ///< lr is times min(step^-0.5, 0.01), and times 0.05 without
                               ///< scale_by_parameter
  double weight_decay = 0;     ///< decoupled, as of adam
};
/// Adafactor (Shazeer & Stern 2018, algorithm 6). The second moment of a parameter with two large
/// dims is kept as its means over the largest ("optimizer.<parameter>.adafactor_row") and the
/// second largest dim ("optimizer.<parameter>.adafactor_column"); the earlier dim counts as the
/// larger one of two equals.
Optimizer adafactor(const AdafactorOptions& options = {}, Loc at = Loc::current());

struct LambOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-6, weight_decay = 0;
};
/// Adam's change u (with decay), times lr |p| / |u| for each parameter p (You et al. 2020,
/// algorithm 2; the ratio is 1 where a norm is 0).
Optimizer lamb(const LambOptions& options = {}, Loc at = Loc::current());

struct LionOptions {
  double beta1 = 0.9, beta2 = 0.99, weight_decay = 0;
};
/// p - lr (sign(b1 m + (1 - b1) g) + decay p); m = b2 m + (1 - b2) g (Chen et al. 2023).
Optimizer lion(const LionOptions& options = {}, Loc at = Loc::current());

/// What the learning rate of the parameters is multiplied by whose name the glob matches: a number,
/// or a scalar tensor, fed or computed.
struct Rate {
  std::string glob;
  double factor = 1;
  Tensor tensor = {};  ///< if given, besides `factor`
};
/// `optimizer` with a learning rate of its own for each parameter: the first match counts, what
/// matches nothing has the common one. A glob that matches no parameter is a usage error with the
/// nearest name.
Optimizer with_rates(const Optimizer& optimizer, const std::vector<Rate>& rates,
                     Loc at = Loc::current());

/// Loss scaling (Micikevicius et al. 2018), for gradients in float16: the loss is multiplied by a
/// scale before backward and the gradients, in float32, by its inverse. A step whose gradient norm
/// is not finite updates nothing but the scale, which it halves; so many good steps in a row double
/// it. All of this is part of the Program. The numbers are state: they go on from a checkpoint.
struct LossScale {
  double initial = 0;         ///< 0: none; 65536 is usual
  int64_t grow_after = 2000;  ///< good steps
  double least = 1, most = 16777216;
};

struct MinimizeOptions {
  double clip = 0;                ///< greatest global norm of all gradients; 0: no clipping
  GradientOptions gradient = {};  ///< what backward recomputes
  LoopOptions loop = {};          ///< of the microbatches
  LossScale loss_scale = {};
};
struct Minimized {
  Tensor gradient_norm;           ///< global L2 norm before clipping, a scalar
  std::vector<Tensor> gradients;  ///< of Graph::parameters(), before clipping: "<parameter>.grad"
  Tensor loss;
  Tensor loss_scale = {};     ///< "optimizer.loss_scale", if there is one
  Tensor skipped_steps = {};  ///< "optimizer.skipped_steps", how many were not finite
};
/// Adds the gradients of `loss` (summed if it is not a scalar) by all parameters, and their
/// updates. Throws a usage error for a parameter that is not floating, a learning rate that is no
/// floating scalar, and a loss scale of a loss or parameter that is narrower than float32.
Minimized minimize(Tensor loss, Tensor lr, const Optimizer& optimizer,
                   const MinimizeOptions& options = {}, Loc at = Loc::current());
/// The same for the mean of the losses of `parts` parts of the batch, each built by `loss` for its
/// share of the dim `dim` (see MicrobatchScope): forward and backward of one part come before the
/// next, so that the activations of one are in memory at a time; gradients are summed where they
/// are made, and combined over ranks once, after the last part. Inputs are fed whole. With a loss
/// that is a mean over examples it is a step of the whole batch, to rounding; one that is a sum has
/// to be multiplied by `parts`. The parts are a loop of the Program, or copies if
/// options.loop.unroll.
Minimized minimize_in_microbatches(Graph& g, const std::string& dim, int64_t parts,
                                   const std::function<Tensor()>& loss, Tensor lr,
                                   const Optimizer& optimizer, const MinimizeOptions& options = {},
                                   Loc at = Loc::current());

/// The learning rate of a step (from 0), on the host.
struct Schedule {
  std::string kind = "cosine";  ///< constant | linear | cosine | rsqrt
  double lr = 1e-3;             ///< peak
  int64_t warmup = 0;           ///< steps of linear rise from `start`
  int64_t steps = 1;            ///< where linear, cosine and the cooldown end
  double floor = 0.1;           ///< of linear and cosine, as a share of lr
  double start = 0;             ///< of the rise, as a share of lr: with kind linear and floor also
                                ///< 1 / 32 a slanted triangle (Howard & Ruder 2018)
  int64_t flat = 0;             ///< rsqrt: lr till this step, then lr sqrt(flat / step); at least
                                ///< warmup
  double cooldown = 0;          ///< the last share of the steps, in which the rate of any kind is
                                ///< multiplied by what falls in a straight line from 1 to 0
  /// Throws a usage error for an unknown kind and for numbers out of range.
  double at(int64_t step) const;
};

}  // namespace tessera
