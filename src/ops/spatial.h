// Where the windows of a spatial dim lie: what convolution and pooling share.
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

/// The windows of dim `in`. Throws usage errors: a window, stride or dilation below 1, a negative
/// padding or one that was not asked for, a window that does not fit.
Spatial spatial_of(const Dim& in, const SpatialDim& dim);
/// The dim of `size` elements (0: the usual number) of which `out` are the windows.
Spatial transposed_spatial(const Dim& out, const SpatialDim& dim, int64_t size);

}  // namespace tessera
