// How a convolution becomes one of cuDNN's: from views and attributes only, so that the
// compile half (the workspace) and the run half come to the same plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/program.h"

namespace tessera::cuda {

/// in = stride * out + dilation * window - pad, in each of two spatial dims; what a convolution has
/// one of has a second one of one element.
struct ConvDim {
  int64_t in = 1, window = 1, out = 1, stride = 1, dilation = 1, pad = 0;
};

/// A dense copy of an operand in the workspace, at `offset` bytes: by dims, strides in the operand
/// and in the copy.
struct ConvCopy {
  bool used = false;
  int64_t offset = 0;
  std::vector<int64_t> to;
};

/// x is images, groups * inputs and the spatial dims; y the same with outputs; the filter is groups
/// * outputs, inputs and the spatial dims of the window. Dense; channels come last, or before the
/// spatial dims.
struct ConvPlan {
  std::string why_not;  ///< empty: the library can do it
  int64_t result = 0;   ///< what is made: 0 y, 1 x, 2 the filter
  int64_t images = 1, groups = 1, inputs = 1, outputs = 1;
  ConvDim dims[2];
  bool channels_last = false;  ///< of 16-bit numbers, which tensor cores want so
  ConvCopy copies[3];          ///< x, filter, y
  int64_t workspace = 0;       ///< bytes
};

/// `step` is a "conv". What the library cannot do: float64, more than two spatial dims, dims whose
/// ranks have parts or padding of them, and padding that is not alike at both ends.
ConvPlan plan_conv(const Step& step);

/// The operand of the step that x (side 0), the filter (1) or y (2) is; 2 stands for the result.
int conv_operand(int64_t result, int side);

}  // namespace tessera::cuda
