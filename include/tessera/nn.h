// Models built from the ops of ops.h. The layers are in nn_layers.h, nn_attention.h and nn_moe.h.
#pragma once

#include <string>
#include <vector>

#include "tessera/graph.h"
#include "tessera/loss.h"
#include "tessera/nn_attention.h"
#include "tessera/nn_layers.h"
#include "tessera/nn_linear_cross_entropy.h"
#include "tessera/nn_moe.h"
#include "tessera/ops.h"

namespace tessera::nn {

/// A model's loss, logits and inputs.
struct Model {
  Tensor loss;  ///< scalar: a mean over examples, or a sum if there is a weight
  Tensor logits;
  std::vector<Tensor> inputs;  ///< fed each step; named like the fields of the data source
  Tensor weight = {};  ///< scalar: what the loss is divided by, over all microbatches (see Loss)
  std::vector<Metric> metrics = {};  ///< reported with the loss, in training and evaluation
  /// Of a language model, for `tessera generate`: the input with its tokens, int32 [batch, p]. The
  /// logits [batch, p, v] at each position are those of the next token.
  Tensor tokens = {};
  Loss to_minimize() const { return {loss, weight, metrics}; }
};

/// The dim "batch" of a model, bounded if `partial`.
Dim batch_dim(int64_t size, bool partial);

/// A pre-norm decoder with learned positions and GELU (Radford et al. 2019). Dims: batch, length,
/// memory_length, d_model, heads, d_head, ff, vocab. Inputs: "inputs" and "targets", int32 [batch,
/// length].
struct GptOptions {
  int64_t layers = 4, d_model = 128, heads = 4, ff = 512, length = 128, vocab = 256, batch = 8;
  bool tied = false;  ///< the output projection uses the embedding
  double dropout = 0;
  bool partial_batch = false;    ///< batch is bounded, for a shorter last batch in evaluation
  DType dtype = DType::float32;  ///< of activations; parameters stay float32 unless float64
  bool float8 = false;           ///< of the blocks' matmuls: float8_matmul()
  bool scan = false;        ///< the blocks are a loop over the dim "layers": one is compiled, and
                            ///< parameters such as "gpt.block.mlp.up.w" hold all blocks
  bool packed = false;      ///< as for transformer()
  int64_t loss_blocks = 1;  ///< as for transformer()
  LoraOptions lora = {};    ///< as for transformer()
};
Model gpt(Graph& g, const GptOptions& options);

/// An MLP with two hidden layers and relu, on images. Dims: batch, rows, cols, hidden, hidden2,
/// classes. Inputs: "images" float32 [batch, rows, cols], "labels" int32 [batch].
struct MlpOptions {
  int64_t batch = 64, rows = 28, cols = 28, hidden = 256, classes = 10;
  bool partial_batch = false;  ///< as for gpt
};
Model mlp(Graph& g, const MlpOptions& options);

/// Two convolutions with pooling and a hidden layer, on images. Dims: batch, rows, cols, channels0
/// (size 1), channels1, channels2, hidden, classes. Inputs as for mlp.
struct CnnOptions {
  int64_t batch = 64, rows = 28, cols = 28, channels1 = 16, channels2 = 32, hidden = 128,
          classes = 10;
  bool partial_batch = false;
};
Model cnn(Graph& g, const CnnOptions& options);

/// A U-Net (Ronneberger et al. 2015; in three dims Cicek et al. 2016). It halves the spatial dims
/// `levels` times, with `convolutions` convolutions of size 3 at each level and twice the filters
/// of the level before. Transposed convolutions lead back up; each level also reads the activations
/// saved on the way down. It classifies every pixel. The loss is cross-entropy weighted by class
/// plus a dice loss. Dims: batch, those of `spatial`, channels, filters and filters2 (alternating,
/// so that each convolution contracts one of them), classes. Inputs: "images" [batch, spatial...,
/// channels], "labels" int32 [batch, spatial...].
struct UnetOptions {
  int64_t batch = 1, channels = 1, filters = 32, levels = 4, convolutions = 2, classes = 3;
  std::vector<Dim> spatial = {{"height", 64}, {"width", 64}};  ///< two or three
  std::vector<double> class_weights = {1, 8, 16};              ///< one per class
  double dropout = 0, dice = 0.2, dice_eps = 0.1;
  bool training = true;  ///< as for batch_norm
  DType dtype = DType::float32;
};
Model unet(Graph& g, const UnetOptions& options);

}  // namespace tessera::nn
