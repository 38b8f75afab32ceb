// Pooling: windows along one dim after the other, each reduced before the next, since maxima and
// sums over boxes are separable. Also the positions of windows, for pooling and convolution.
#include <algorithm>
#include <limits>

#include "base/sizes.h"
#include "ops/infer.h"
#include "ops/spatial.h"
#include "ops/window.h"
#include "tessera/ops.h"

namespace tessera {

namespace {
/// Limits the padded size, the stride and the span of a window, so that sums of them cannot
/// overflow.
void require_countable(const Dim& in, const SpatialDim& d) {
  checked_size(Wide{in.size} + d.before + d.after, "dim '" + d.dim + "' with its padding");
  checked_size(d.stride, "the stride along dim '" + d.dim + "'");
  checked_size(d.dilation, "the dilation along dim '" + d.dim + "'");
  checked_size(Wide{d.dilation} * (d.window - 1) + 1, "a window along dim '" + d.dim + "'");
}
}  // namespace

Spatial spatial_of(const Dim& in, const SpatialDim& d) {
  TESSERA_REQUIRE(d.window >= 1 && d.stride >= 1,
                  "a window of {} with stride {}; both are at least 1", d.window, d.stride);
  TESSERA_REQUIRE(d.dilation >= 1, "dilation {} along dim '{}'; it is at least 1", d.dilation,
                  d.dim);
  TESSERA_REQUIRE(d.before >= 0 && d.after >= 0,
                  "padding of {} and {} around dim '{}'; neither is negative", d.before, d.after,
                  d.dim);
  TESSERA_REQUIRE(d.padding == Padding::given || (d.before == 0 && d.after == 0),
                  "padding of {} and {} around dim '{}' needs Padding::given", d.before, d.after,
                  d.dim);
  TESSERA_REQUIRE(!in.is_bounded,
                  "dim '{}' is bounded; reshape() it to a dim of fixed size, where zeros stand for "
                  "what is not there",
                  d.dim);
  require_countable(in, d);
  Spatial result{in.size, (in.size + d.stride - 1) / d.stride, d.before};
  if (d.padding == Padding::same) {
    result.lo = std::max<int64_t>(0, (result.out - 1) * d.stride + d.span() - in.size) / 2;
    return result;
  }
  const int64_t padded = in.size + d.before + d.after;
  TESSERA_REQUIRE(padded >= d.span(), "a window of {}{} does not fit into dim '{}' of size {}{}",
                  d.window, d.dilation == 1 ? "" : fmt::format(" with dilation {}", d.dilation),
                  d.dim, in.size, padded == in.size ? "" : fmt::format(" padded to {}", padded));
  result.out = (padded - d.span()) / d.stride + 1;
  return result;
}

Spatial transposed_spatial(const Dim& out, const SpatialDim& d, int64_t size) {
  const Wide span = Wide{d.dilation} * (d.window - 1) + 1,
             least = Wide{out.size - 1} * d.stride + span - d.before - d.after,
             usual = d.padding == Padding::same ? Wide{out.size} * d.stride : least;
  Dim in(d.dim, 1);
  in.size = checked_size(size != 0 ? size : usual, "dim '" + d.dim + "' of the result");
  TESSERA_REQUIRE(in.size >= 1, "the result would have {} elements along dim '{}'", in.size, d.dim);
  const Spatial result = spatial_of(in, d);
  TESSERA_REQUIRE(result.out == out.size,
                  "a convolution of dim '{}' of size {} has {} windows, but x has {}", d.dim,
                  in.size, result.out, out.size);
  return result;
}

namespace {

constexpr const char* kWindowDim = "pool_window";

struct PoolWindow {
  SpatialDim dim;
  Spatial place;
};

std::vector<PoolWindow> windows_of(Tensor x, const PoolOptions& o) {
  TESSERA_REQUIRE(!o.dims.empty(), "there is no dim to pool");
  std::vector<PoolWindow> windows;
  for (const PoolDim& p : o.dims) {
    const SpatialDim d{p.dim,      p.window,  p.stride == 0 ? p.window : p.stride,
                       p.dilation, o.padding, p.before,
                       p.after};
    for (const PoolWindow& other : windows)
      TESSERA_REQUIRE(other.dim.dim != p.dim, "dim '{}' is given twice", p.dim);
    windows.push_back({d, spatial_of(x.dim(p.dim), d)});
    TESSERA_REQUIRE(
        p.before < d.span() && p.after < d.span(),
        "padding of {} and {} around dim '{}' has room for a window of {} of nothing else",
        p.before, p.after, p.dim, p.window);
  }
  return windows;
}

Tensor windowed(Tensor x, const PoolWindow& w, double fill, Loc at) {
  WindowOptions o;
  o.stride = w.dim.stride;
  o.dilation = w.dim.dilation;
  o.lo = w.place.lo;
  o.fill = fill;
  o.window = kWindowDim;
  o.window_size = w.dim.window;
  return window(x, w.dim.dim, Dim(w.dim.dim, w.place.out), o, at);
}

/// Number of elements of x in each window, [dim].
Tensor counts(Tensor x, const PoolWindow& w, Loc at) {
  Tensor ones = constant(x.graph(), 1, x.dtype(), {Dim(w.dim.dim, w.place.in)}, at);
  return reduce_sum(windowed(ones, w, 0, at), kWindowDim, at);
}

bool reaches_outside(const PoolWindow& w) {
  const int64_t last = (w.place.out - 1) * w.dim.stride + w.dim.span() - w.place.lo;
  return w.place.lo > 0 || last > w.place.in;
}

}  // namespace

Tensor max_pool(Tensor x, const PoolOptions& options, Loc at) {
  return on_behalf_of("max_pool", at, [&] {
    for (const PoolWindow& w : windows_of(x, options)) {
      x = reduce_max(windowed(x, w, -std::numeric_limits<double>::infinity(), at), kWindowDim, at);
    }
    return x;
  });
}

Tensor avg_pool(Tensor x, const PoolOptions& options, Loc at) {
  return on_behalf_of("avg_pool", at, [&] {
    TESSERA_REQUIRE(is_floating(x.dtype()), "x is {}; a mean needs a floating type, use cast()",
                    to_string(x.dtype()));
    if (is_narrow(x.dtype()))  // the sum may overflow 16 bits
      return cast(avg_pool(cast(x, DType::float32, at), options, at), x.dtype(), at);
    for (const PoolWindow& w : windows_of(x, options)) {
      const bool uneven = !options.count_padding && reaches_outside(w);
      x = reduce_sum(windowed(x, w, 0, at), kWindowDim, at);
      x = uneven
              ? div(x, counts(x, w, at), at)
              : mul(x,
                    constant(x.graph(), 1.0 / static_cast<double>(w.dim.window), x.dtype(), {}, at),
                    at);
    }
    return x;
  });
}

Tensor windows(Tensor x, const std::string& dim, const Dim& of, const WindowsOptions& options,
               Loc at) {
  return on_behalf_of("windows", at, [&] {
    TESSERA_REQUIRE(!x.shape().has(of.name), "x has a dim '{}' already", of.name);
    require_fill(x.dtype(), options.fill);
    const SpatialDim d{
        dim,          of.size, options.stride, options.dilation, Padding::given, options.before,
        options.after};
    const Spatial place = spatial_of(x.dim(dim), d);
    WindowOptions o;
    o.stride = options.stride;
    o.dilation = options.dilation;
    o.lo = place.lo;
    o.fill = options.fill;
    o.window = of.name;
    o.window_size = of.size;
    return window(x, dim, Dim(dim, place.out), o, at);
  });
}

}  // namespace tessera
