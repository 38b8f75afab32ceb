// The loss of a language model with a large vocabulary, without its logits.
#pragma once

#include <string>

#include "tessera/ops.h"

namespace tessera::nn {

struct LinearCrossEntropyOptions {
  std::string contracted = "d_model";  ///< the dim that x and w contract
  std::string classes = "vocab";
  std::string dim = "length";  ///< the dim of the examples that is cut into blocks
  int64_t blocks = 1;          ///< a divisor of its size
  double scale = 1, cap = 0;   ///< logits z become scale z, then cap tanh(z / cap); 0: no cap
  double z_loss = 0;           ///< as for cross_entropy()
};

/// sum over examples of weights * cross_entropy(logits, labels, classes), a scalar of float32 or
/// float64, with logits = einsum(x, w). One block of examples at a time, logits [examples / blocks,
/// classes] are made, and at once their gradient and what follows from it: no run holds all of
/// them, and none is computed twice (as in Liger Kernel, Hsu et al. 2024, section 3.2).
///     x [examples, contracted], w [classes, contracted], labels int32 [examples], weights
///     with any dims of the examples (a scalar for a mean), read in the dtype of the result; empty:
///     all are 1; no gradient goes through labels and weights.
/// Block b has the examples whose index along `dim` is b modulo `blocks`, so that a layout which
/// splits `dim` splits every block. Values are those of the plain ops but for the order of sums.
/// A bounded `dim`, a number of blocks that does not divide its size and missing
/// dims are usage errors.
Tensor linear_cross_entropy(Tensor x, Tensor w, Tensor labels, Tensor weights,
                            const LinearCrossEntropyOptions& options = {}, Loc at = Loc::current());

}  // namespace tessera::nn
