// The positions of windows along a spatial dim, for convolution and pooling.
#pragma once

#include <string>

#include "tessera/ops.h"

namespace tessera {

struct SpatialDim {
  std::string dim;
  int64_t window = 1, stride = 1, dilation = 1;
  Padding padding = Padding::same;
  int64_t before = 0, after = 0;  ///< with Padding::given

  int64_t span() const { return dilation * (window - 1) + 1; }
};

/// in = stride * out + dilation * window - lo.
struct Spatial {
  int64_t in = 0, out = 0, lo = 0;
};

/// The windows of dim `in`. Throws usage errors: window, stride or dilation below 1, negative
/// padding, padding without Padding::given, a window that does not fit.
Spatial spatial_of(const Dim& in, const SpatialDim& dim);
/// The inverse: the dim of `size` elements (0: the default size) whose windows are `out`.
Spatial transposed_spatial(const Dim& out, const SpatialDim& dim, int64_t size);

}  // namespace tessera
