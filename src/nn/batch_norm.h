// Batch normalization in training: with the statistics of x itself.
#pragma once

#include "tessera/ops.h"

namespace tessera::nn {

struct BatchNormed {
  Tensor y, mean, variance;  ///< the statistics in the dtype of scale
};

/// (x - mean) / sqrt(variance + eps) * scale + bias with the statistics over `axes`. Scale and bias
/// have the other dims, and at least float32.
BatchNormed batch_normed(Tensor x, Tensor scale, Tensor bias, const Axes& axes, double eps, Loc at);

}  // namespace tessera::nn
