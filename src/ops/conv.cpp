// Convolution and pooling over two spatial dims: windows along each, then a contraction or a
// maximum over the window dims. Output sizes follow the usual rule: same: ceil(in / stride), valid:
// ceil((in - window + 1) / stride).
#include <algorithm>
#include <limits>

#include "ops/infer.h"
#include "ops/window.h"
#include "tessera/ops.h"

namespace tessera {

namespace {

Tensor spatial_window(Tensor x, const std::string& dim, const std::string& window_dim, int64_t size,
                      int64_t stride, bool same, double fill, Loc at) {
  const int64_t n = x.dim(dim).size;
  require(stride >= 1 && size >= 1, "a window of {} with stride {}; both are at least 1", size,
          stride);
  require(same || n >= size, "a window of {} does not fit into dim '{}' of size {}", size, dim, n);
  const int64_t out = same ? (n + stride - 1) / stride : (n - size) / stride + 1;
  WindowOptions o;
  o.stride = stride;
  o.window = window_dim;
  o.window_size = size;
  o.fill = fill;
  if (same) o.lo = std::max<int64_t>(0, (out - 1) * stride + size - n) / 2;
  return window(x, dim, Dim(dim, out), o, at);
}

Tensor convolve(Tensor x, Tensor filter, const Conv2dOptions& o, Loc at) {
  const Dim &fh = filter.dim(o.filter_height), &fw = filter.dim(o.filter_width);
  Tensor patches = spatial_window(x, o.height, fh.name, fh.size, o.stride, o.same, 0, at);
  patches = spatial_window(patches, o.width, fw.name, fw.size, o.stride, o.same, 0, at);
  std::vector<Dim> out;
  for (const Dim& d : patches.shape()) {
    if (!filter.shape().has(d.name)) out.push_back(d);
  }
  for (const Dim& d : filter.shape()) {
    if (!patches.shape().has(d.name)) out.push_back(d);
  }
  return einsum({patches, filter}, Shape(out), at);
}

Tensor pool(Tensor x, const PoolOptions& o, Loc at) {
  const double lowest = -std::numeric_limits<double>::infinity();
  Tensor patches =
      spatial_window(x, o.height, "pool_height", o.window, o.stride, o.same, lowest, at);
  patches = spatial_window(patches, o.width, "pool_width", o.window, o.stride, o.same, lowest, at);
  return reduce_max(patches, {"pool_height", "pool_width"}, at);
}

}  // namespace

Tensor conv2d(Tensor x, Tensor filter, const Conv2dOptions& options, Loc at) {
  return on_behalf_of("conv2d", at, [&] { return convolve(x, filter, options, at); });
}

Tensor max_pool(Tensor x, const PoolOptions& options, Loc at) {
  return on_behalf_of("max_pool", at, [&] { return pool(x, options, at); });
}

}  // namespace tessera
