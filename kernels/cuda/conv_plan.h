// How a convolution becomes a cuDNN call. Decided from views and attributes only, so that compiling
// (the workspace) and binding come to the same plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/program.h"

namespace tessera::cuda {

/// in = stride * out + dilation * window - pad in each of two spatial dims. A convolution with one
/// spatial dim gets a second of size 1.
struct ConvDim {
  int64_t in = 1, window = 1, out = 1, stride = 1, dilation = 1, pad = 0;
};

/// A dense copy of an operand in the workspace, at `offset` bytes: sizes, strides in the operand,
/// strides in the copy.
struct ConvCopy {
  bool used = false;
  int64_t offset = 0;
  std::vector<int64_t> to;
};

/// x is images, groups * inputs and the spatial dims; y the same with outputs; the filter is groups
/// * outputs, inputs and the spatial dims of the window. All are dense, with channels last or
/// before the spatial dims.
struct ConvPlan {
  std::string why_not;  ///< empty: the library can do it
  int64_t result = 0;   ///< what is computed: 0 y, 1 x, 2 the filter
  int64_t images = 1, groups = 1, inputs = 1, outputs = 1;
  ConvDim dims[2];
  bool channels_last = false;  ///< for 16-bit types: tensor cores need it
  ConvCopy copies[3];          ///< x, filter, y
  int64_t workspace = 0;       ///< bytes
};

/// `step` is a "conv". Not supported by the library: float64, more than two spatial dims, spatial
/// dims that are split or padded on ranks, and padding that differs at both ends.
ConvPlan plan_conv(const Step& step);

/// Which operand of the step x, filter or y is; the result is 2.
int conv_operand(int64_t result, int side);

}  // namespace tessera::cuda
