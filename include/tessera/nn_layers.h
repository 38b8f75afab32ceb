// Initializers and layers. A layer is a function that adds its parameters to the graph, as
// "<name>.w" etc. in the current scope, and returns its result. Parameters are stored as float32
// (float64 for float64 activations) and cast to the activations' dtype when read. Every function
// throws a usage error for dims that its operands lack.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/graph.h"
#include "tessera/ops.h"

namespace tessera::nn {

// ----------------------------------------------------------------------------------- initializers
// The values are the same under every layout.
Initializer zeros();
Initializer ones();
Initializer filled_with(double value);
Initializer normal(double stddev, Loc at = Loc::current());
/// Normal, truncated to two standard deviations of the parent distribution.
Initializer truncated(double stddev, Loc at = Loc::current());
Initializer uniform(double lo, double hi, Loc at = Loc::current());

/// Zero mean, variance scale / fan. The fan is the product of the sizes of the parameter's dims
/// `in`, of its dims `out`, or the mean of both products.
struct VarianceScaling {
  enum class Fan { in, out, average };
  enum class Distribution { truncated, normal, uniform };
  std::vector<std::string> in, out = {};
  double scale = 1;
  Fan fan = Fan::in;
  Distribution distribution = Distribution::truncated;  ///< the variance is that before truncation
};
Initializer variance_scaling(const VarianceScaling& options);
/// Normal with standard deviation gain / sqrt(fan_in), truncated at two (LeCun et al. 1998).
Initializer scaled_normal(const std::vector<std::string>& fan_in_dims, double gain = 1);
/// Variance 2 / (fan_in + fan_out) (Glorot & Bengio 2010).
Initializer glorot_normal(const std::vector<std::string>& in, const std::vector<std::string>& out);
Initializer glorot_uniform(const std::vector<std::string>& in, const std::vector<std::string>& out);
/// Variance 2 / fan_in (He et al. 2015).
Initializer he_normal(const std::vector<std::string>& in);
Initializer he_uniform(const std::vector<std::string>& in);

// ------------------------------------------------------------------------------------------ dense
/// x . w + b: contracts `in` (dims of x) to `out`. Parameters "<name>.w" [in..., out...] and, with
/// bias, "<name>.b" [out...].
Tensor dense(Tensor x, const std::string& name, const std::vector<std::string>& in,
             const Shape& out, bool bias = true, double gain = 1, Loc at = Loc::current());

/// Low-rank adaptation (Hu et al. 2022): a dense layer gives x w + (alpha / rank) (x' a) b, where
/// x' is x with dropout. At first b is 0. Train only "*.lora_a" and "*.lora_b"
/// (MinimizeOptions::trainable).
struct LoraOptions {
  int64_t rank = 0;  ///< size of the dim "rank"; 0: no layer is adapted
  double alpha = 16;
  double dropout = 0;  ///< rate on x in front of a; 0 for evaluation
  /// The adapted layers, as globs of the ends of their names: "query" and "attention.*" both match
  /// "gpt.block3.attention.query". Empty: every layer that is asked.
  std::vector<std::string> targets = {};
  /// Whether the layer called `name`, with its scope, is adapted.
  bool adapts(const std::string& name) const;
};
/// Throws a usage error for a rank below 0, an alpha that is not positive, a dropout that is no
/// rate below 1, and for a target that is no layer in the scope `within`, with the names of those
/// that are.
void require_adapted(Graph& g, const LoraOptions& options, const std::string& within,
                     Loc at = Loc::current());

struct DenseOptions {
  bool bias = true;
  double gain = 1;
  /// Dims of x (experts) for each element of which there are separate weights and biases.
  std::vector<std::string> stacked = {};
  Initializer init = {};                      ///< of w; empty: scaled_normal with `gain`
  std::vector<std::string> activations = {};  ///< applied in order; see activate()
  bool float8 = false;                        ///< use float8_matmul()
  /// If it adapts this layer: parameters "<name>.lora_a" [in..., rank] and "<name>.lora_b" [rank,
  /// out...].
  LoraOptions lora = {};
};
/// The same with options. A dim of `out` may have the name of one of `in`; in w it then has the
/// prefix "_".
Tensor dense(Tensor x, const std::string& name, const std::vector<std::string>& in,
             const Shape& out, const DenseOptions& options, Loc at = Loc::current());

using tessera::activate;
/// The product of dense layers "<name>0", "<name>1", ..., one for each activation; a single one is
/// called "<name>". {"sigmoid", "linear"} is GLU, {"gelu", "linear"} GEGLU, {"silu", "linear"}
/// SwiGLU (Shazeer 2020).
Tensor dense_product(Tensor x, const std::string& name, const std::vector<std::string>& in,
                     const Shape& out, const std::vector<std::string>& activations,
                     const DenseOptions& options = {}, Loc at = Loc::current());

struct FeedForwardOptions {
  std::vector<std::string> activations = {"relu"};  ///< as for dense_product
  double dropout = 0;                               ///< rate on the hidden values
  DenseOptions dense = {};
};
/// dense_product "up" from `dim` to `hidden`, dropout, dense "down" back to `dim`. Scope: `name`.
Tensor feed_forward(Tensor x, const std::string& name, const std::string& dim, const Dim& hidden,
                    const FeedForwardOptions& options = {}, Loc at = Loc::current());

struct ConvLayerOptions {
  ConvOptions conv = {};    ///< empty dims: those of the window
  bool transposed = false;  ///< conv_transpose
  bool bias = true;
  double gain = 1;
  Initializer init = {};  ///< of the filter; empty: scaled_normal with `gain`
};
/// conv() with a filter whose spatial sizes are those of `window` (spatial dims of x). Contracts
/// `in` to `out`. Parameters "<name>.w" [filter_..., in, out] and, with bias, "<name>.b" [out].
Tensor conv_layer(Tensor x, const std::string& name, const Shape& window, const std::string& in,
                  const Dim& out, const ConvLayerOptions& options = {}, Loc at = Loc::current());

/// Looks up rows of a table "<name>.w" [vocab, out...]. Result: the dims of indices, then out.
Tensor embedding(Tensor indices, const std::string& name, const Dim& vocab, const Shape& out,
                 const Initializer& init = normal(0.02), DType dtype = DType::float32,
                 Loc at = Loc::current());

// ------------------------------------------------------------------------------------------ norms
/// layer_norm with parameters "<name>.scale" and "<name>.bias".
Tensor norm(Tensor x, const std::string& name, const std::string& dim, double eps = 1e-5,
            Loc at = Loc::current());
/// rms_norm with the parameter "<name>.scale".
Tensor rms_norm(Tensor x, const std::string& name, const std::string& dim, double eps = 1e-6,
                Loc at = Loc::current());

struct BatchNormOptions {
  bool training = true;  ///< use the statistics of this batch and update the running means; else
                         ///< use the running means
  double momentum = 0.99, eps = 1e-3;
};
/// (x - mean) / sqrt(var + eps) * scale + bias, with statistics for each element of the dims
/// `channels` over all other dims (Ioffe & Szegedy 2015). Parameters "<name>.scale" and
/// "<name>.bias", state "<name>.mean" and "<name>.variance", all with the dims `channels` in that
/// order.
Tensor batch_norm(Tensor x, const std::string& name, const Axes& channels,
                  const BatchNormOptions& options = {}, Loc at = Loc::current());

// ----------------------------------------------------------------------------------------- losses
/// -(labels log sigmoid(x) + (1 - labels) log(1 - sigmoid(x))) for each element, without overflow.
/// labels: in [0, 1], with logits' dtype and dims.
Tensor sigmoid_cross_entropy(Tensor logits, Tensor labels, Loc at = Loc::current());
/// 1 where the label is not `padding`, else 0.
Tensor nonzero_weights(Tensor labels, DType dtype = DType::float32, int64_t padding = 0,
                       Loc at = Loc::current());
/// Soft labels for cross_entropy: 1 - smoothing at the label, smoothing / (classes - 1) elsewhere
/// (label smoothing, Szegedy et al. 2016).
Tensor smoothed(Tensor labels, const Dim& classes, double smoothing, DType dtype = DType::float32,
                Loc at = Loc::current());

// ------------------------------------------------------------------------------------- activations
/// dropout in which elements that differ only along the dims `shared` are dropped together.
Tensor dropout_shared(Tensor x, double rate, const std::vector<std::string>& shared,
                      Loc at = Loc::current());
/// dropout with a rate computed by the graph, a floating scalar. rate >= 1 gives zeros, rate < 0
/// gives x / (1 - rate).
Tensor dropout_at(Tensor x, Tensor rate, Loc at = Loc::current());
/// x times a random number for each element, uniform in [1 - eps, 1 + eps).
Tensor jitter(Tensor x, double eps, Loc at = Loc::current());
using tessera::clip_gradient;

}  // namespace tessera::nn
