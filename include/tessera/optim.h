// Optimizers, gradient clipping, learning-rate schedules.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/graph.h"
#include "tessera/loops.h"
#include "tessera/loss.h"
#include "tessera/ops.h"

namespace tessera {

/// A function that adds the update of one parameter to the graph, in the scope
/// "optimizer.<parameter>". `lr` is a scalar, `step` a float32 scalar that counts from 1. If the
/// parameter is stored in 16 bits, its gradient, its state and its new value are float32. State is
/// made with Graph::state(), named "optimizer.<parameter>.<what>" and laid out like the parameter
/// by the @state rules. Write your own optimizer as such a function. The optimizers below throw
/// usage errors for options out of range and, when they are applied, for globs and dims that no
/// parameter has.
using Optimizer =
    std::function<void(Graph& g, Tensor parameter, Tensor gradient, Tensor lr, Tensor step)>;

/// p - lr g.
Optimizer sgd(double weight_decay = 0);
struct MomentumOptions {
  double mu = 0.9, weight_decay = 0;
  bool rate_in_velocity = false;  ///< v = mu v + lr g; p - v, as in Keras and Mesh TensorFlow; the
                                  ///< same as long as lr is constant
};
/// v = mu v + g; p - lr v (Sutskever et al. 2013, as in PyTorch).
Optimizer momentum(double mu = 0.9, double weight_decay = 0, Loc at = Loc::current());
Optimizer momentum(const MomentumOptions& options, Loc at = Loc::current());

struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  /// Of each parameter with at least two dims, the dim of layers not counted, unless its last name
  /// is b, bias or scale: blocks.key.b [heads, d_head] does not decay, however it begins. All
  /// optimizers have this rule. parameter_table() and `tessera explain --parameters` show what
  /// decays.
  double weight_decay = 0;
  std::vector<std::string> no_decay = {};  ///< globs of further parameters without decay
  bool decoupled =
      true;  ///< AdamW (Loshchilov & Hutter 2019); else the decay is added to the gradient
  bool bias_correction = true;  ///< false: as in BERT (Devlin et al. 2019) and Mesh TensorFlow,
                                ///< which use beta2 0.999, eps 1e-6
  bool decay_all = false;       ///< decay all parameters except no_decay, as both do
};
/// Adam (Kingma & Ba 2015, algorithm 1).
Optimizer adam(const AdamOptions& options = {}, Loc at = Loc::current());

struct AdafactorOptions {
  double decay_exponent = 0.8;  ///< second moment decay: 1 - (step - decay_offset)^-decay_exponent
  int64_t decay_offset = 0;     ///< steps of earlier training
  double beta2 = 0;             ///< if not 0: decay as in Adam with bias correction instead
  double decay = 0;             ///< if not 0: this constant decay instead
  double beta1 = 0;             ///< of the mean of updates; 0: no mean and no state for it
  double clip = 1;              ///< maximum root mean square of an update; 0: no limit
  double eps1 = 1e-30;          ///< added to the squared gradient
  double eps2 = 1e-3;           ///< minimum scale of a parameter
  int64_t factor_from = 128;    ///< minimum size of the second largest dim for a factored moment
  bool scale_by_parameter = true;          ///< lr is relative to the parameter's root mean square
  std::vector<std::string> unscaled = {};  ///< globs of parameters whose lr is absolute
  std::vector<std::string> stacked = {};  ///< dims of stacked layers, not factored or averaged over
  bool relative_step = false;  ///< lr *= min(step^-0.5, 0.01), * 0.05 if not scale_by_parameter
  double weight_decay = 0;     ///< decoupled, of the parameters that adam decays
};
/// Adafactor (Shazeer & Stern 2018, algorithm 6). The second moment of a parameter with two large
/// dims is kept as two means, over its largest dim ("optimizer.<parameter>.adafactor_row") and over
/// its second largest ("optimizer.<parameter>.adafactor_column"). Of two dims of equal size the
/// earlier counts as the larger.
Optimizer adafactor(const AdafactorOptions& options = {}, Loc at = Loc::current());

struct LambOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-6, weight_decay = 0;
};
/// LAMB: Adam's update u (with decay) times lr |p| / |u| for each parameter p; the ratio is 1 where
/// a norm is 0 (You et al. 2020, algorithm 2).
Optimizer lamb(const LambOptions& options = {}, Loc at = Loc::current());

struct LionOptions {
  double beta1 = 0.9, beta2 = 0.99, weight_decay = 0;
};
/// Lion: p - lr (sign(b1 m + (1 - b1) g) + decay p); m = b2 m + (1 - b2) g (Chen et al. 2023).
Optimizer lion(const LionOptions& options = {}, Loc at = Loc::current());

/// A factor of the learning rate for the parameters whose names match the glob: a number, a scalar
/// tensor (fed or computed), or both.
struct Rate {
  std::string glob;
  double factor = 1;
  Tensor tensor = {};  ///< optional; multiplied with `factor`
};
/// `optimizer` with a learning rate for each parameter: that of the first matching Rate, else `lr`.
/// Throws a usage error with the nearest name for a glob that matches no parameter.
Optimizer with_rates(const Optimizer& optimizer, const std::vector<Rate>& rates,
                     Loc at = Loc::current());

struct MuonOptions {
  double mu = 0.95, weight_decay = 0;
  bool nesterov = true;
  int64_t iterations = 5;  ///< of Newton-Schulz
  /// Globs of the parameters that are matrices, if they have a dim of `rows` and others.
  std::vector<std::string> matrices = {"*block*"};
  /// The dims that are one side of a matrix; its other dims are the other side.
  std::vector<std::string> rows = {"d_model"};
  /// Dims that count matrices, besides those of a repeat(): each is orthogonalized by itself.
  std::vector<std::string> stacked = {"experts"};
};
/// Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon): for matrices m = mu m + (1 - mu)
/// g; p - lr (0.2 sqrt(max(rows, columns)) O + decay p), where O is g (1 - mu) + mu m (m itself
/// without nesterov) with singular values near 1, by Newton-Schulz iterations in float32. The
/// factor (Liu et al. 2025, "Muon is scalable for LLM training") gives updates the size of Adam's,
/// so that both have one learning rate. All other parameters are updated by `others`. The
/// iterations run in the layout of the state "optimizer.<parameter>.muon_m": under `@state
/// layers:data` each rank has whole matrices of some layers. Throws usage errors for globs that
/// match no parameter, and if nothing is a matrix.
Optimizer muon(const MuonOptions& options, const Optimizer& others, Loc at = Loc::current());

/// `optimizer`, with a moving average of each parameter that it updates: its first new value, then
/// decay * average + (1 - decay) * new value. It is the state "optimizer.<parameter>.ema" in
/// float32 or wider. Steps that update nothing leave it as it is.
Optimizer with_average(const Optimizer& optimizer, double decay, Loc at = Loc::current());

/// Dynamic loss scaling for float16 gradients (Micikevicius et al. 2018). The loss is multiplied by
/// the scale before backward, the float32 gradients by its inverse. If the gradient norm is not
/// finite, the step updates nothing and halves the scale. After `grow_after` good steps in a row
/// the scale doubles. The Program does all of this. Scale and counters are state, so they are saved
/// in checkpoints.
struct LossScale {
  double initial = 0;         ///< 0: no loss scaling; 65536 is common
  int64_t grow_after = 2000;  ///< good steps
  double least = 1, most = 16777216;
};

struct MinimizeOptions {
  double clip = 0;                ///< maximum global gradient norm; 0: no clipping
  GradientOptions gradient = {};  ///< what backward recomputes
  LoopOptions loop = {};          ///< of the microbatches
  LossScale loss_scale = {};
  /// Globs of the parameters that are trained; empty: all. "*.qkv.weight" also names the parts
  /// "x.qkv.weight.part0" of a fused weight. The others are constants: no gradient is computed for
  /// them or kept, and they have no optimizer state.
  std::vector<std::string> trainable = {};
};
struct Minimized {
  Tensor gradient_norm;              ///< global L2 norm before clipping, a scalar
  std::vector<Tensor> gradients;     ///< per trained one, before clipping: "<parameter>.grad"
  Tensor loss;                       ///< the mean
  Tensor loss_scale = {};            ///< "optimizer.loss_scale", if used
  Tensor skipped_steps = {};         ///< "optimizer.skipped_steps": steps with a non-finite norm
  std::vector<Metric> metrics = {};  ///< their means, without weights
  std::vector<Tensor> outputs = {};  ///< Loss::outputs; of microbatches, those of the whole batch
};
/// Adds the gradients of `loss` (a tensor, summed if it is not a scalar, or a Loss) for all
/// trained parameters, and their updates. Throws a usage error for a glob of options.trainable that
/// matches no parameter, a trained parameter, loss, metric or learning rate that is not floating, a
/// loss that depends on no trained parameter, a learning rate, weight or metric that is not a
/// scalar, a weighted loss that is none, two metrics of one name, and loss scaling with a loss or
/// parameter narrower than float32.
Minimized minimize(const Loss& loss, Tensor lr, const Optimizer& optimizer,
                   const MinimizeOptions& options = {}, Loc at = Loc::current());
/// With a constant learning rate.
Minimized minimize(const Loss& loss, double lr, const Optimizer& optimizer,
                   const MinimizeOptions& options = {}, Loc at = Loc::current());
/// Gradient accumulation: minimizes the mean of the losses of `parts` microbatches (see Loss: by
/// weight if it has one). `loss` builds the loss of one microbatch, a tensor or a Loss, its share
/// of the dim `dim` (see MicrobatchScope). Forward and backward of one microbatch finish before the
/// next begins, so only one microbatch's activations are in memory. Gradients are summed locally
/// and combined over ranks once, after the last microbatch (CompileOptions::reduce_each_microbatch:
/// after each). Inputs are fed for the whole batch. If the loss is a mean over examples, or has a
/// weight, this equals a step of the whole batch up to rounding. The microbatches are a loop of the
/// Program, or copies if options.loop.unroll.
Minimized minimize_in_microbatches(Graph& g, const std::string& dim, int64_t parts,
                                   const std::function<Loss()>& loss, Tensor lr,
                                   const Optimizer& optimizer, const MinimizeOptions& options = {},
                                   Loc at = Loc::current());

/// The learning rate of a step (from 0), on the host.
struct Schedule {
  std::string kind = "cosine";  ///< constant | linear | cosine | rsqrt
  double lr = 1e-3;             ///< peak
  int64_t warmup = 0;           ///< steps of the linear rise from `start`
  int64_t steps = 1;            ///< where linear, cosine and cooldown end
  double floor = 0.1;           ///< final rate of linear and cosine, as a fraction of lr
  double start = 0;  ///< initial rate, as a fraction of lr; with kind linear and start = floor = 1
                     ///< / 32 it is the slanted triangular schedule (Howard & Ruder 2018)
  int64_t flat = 0;  ///< rsqrt: the step at which decay begins (at least warmup); from there lr
                     ///< sqrt(flat / step)
  double cooldown = 0;  ///< the last fraction of the steps, in which the rate of any kind is also
                        ///< multiplied by a factor that falls linearly from 1 to 0
  /// Throws a usage error for an unknown kind and for numbers out of range.
  double at(int64_t step) const;
};

}  // namespace tessera
