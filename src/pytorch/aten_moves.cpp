// Ops that move elements along axes: padding, windows, diagonals, shuffles.
#include <algorithm>
#include <numeric>

#include "pytorch/aten.h"

namespace tessera::pytorch {

namespace {

/// Which of n elements stands at i, outside of [0, n) too.
int64_t padding_index(int64_t i, int64_t n, const std::string& mode) {
  if (mode == "circular") return (i % n + n) % n;
  if (mode == "replicate" || n == 1) return std::clamp<int64_t>(i, 0, n - 1);
  const int64_t period = 2 * n - 2, at = (i % period + period) % period;
  return at < n ? at : period - at;
}

/// Zeros, or a number, or other elements around an axis; a negative count cuts off.
std::vector<Value> padded(Call& c) {
  Value x = c.value("self");
  const std::string& op = c.node().target;
  const std::vector<int64_t> pads = c.list(c.is_given("pad") ? "pad" : "padding");
  const std::string mode = op.find("reflection") != std::string::npos ? "reflect"
                           : op.find("replication") != std::string::npos
                               ? "replicate"
                               : c.text("mode", "constant");
  for (size_t i = 0; i * 2 + 1 < pads.size(); ++i) {
    const size_t d = x.axes.size() - 1 - i;
    const int64_t before = pads[2 * i], after = pads[2 * i + 1], n = c.size(x.axes[d]);
    if (before == 0 && after == 0) continue;
    if (mode != "constant") {
      std::vector<int64_t> at;
      for (int64_t k = -before; k < n + after; ++k) at.push_back(padding_index(k, n, mode));
      x = taken(c, x, d, at);
      continue;
    }
    AxisList axes = x.axes;
    axes[d] = {};
    axes[d] = c.fresh(n + before + after, axes);
    x = c.made(axes, [&] {
      const std::vector<Dim> from = c.dims(x.axes[d]), to = c.dims(axes[d]);
      const Dim all = merged(from);
      Tensor y = merge(Call::having(x.tensor, from), from, all);
      if (before < 0 || after < 0)
        y = slice(y, all.name, std::max<int64_t>(-before, 0),
                  n - std::max<int64_t>(-before, 0) - std::max<int64_t>(-after, 0));
      if (before > 0 || after > 0)
        y = pad(y, all.name, std::max<int64_t>(before, 0), std::max<int64_t>(after, 0),
                c.number("value", 0));
      return to.empty() ? pick(y, all.name, 0) : unmerge(y, all, to);
    });
  }
  return {x};
}

std::vector<Value> flipped(Call& c) {
  const Value x = c.value("self");
  return {c.made(x.axes, [&] {
    Tensor y = x.tensor;
    for (int64_t d : c.list("dims")) {
      const std::vector<Dim> dims =
          c.dims(x.axes.at(static_cast<size_t>(d < 0 ? d + std::ssize(x.axes) : d)));
      for (const Dim& dim : present(y, dims))
        y = take_along(y, static_cast<double>(dim.size - 1) - iota(c.graph(), dim), dim.name);
    }
    return y;
  })};
}

std::vector<Value> rolled(Call& c) {
  Value x = c.value("self");
  const std::vector<int64_t> shifts = c.list("shifts");
  std::vector<int64_t> dims = c.list("dims", std::vector<int64_t>());
  const bool is_flat = dims.empty() && shifts.size() == 1;
  if (!is_flat && dims.size() != shifts.size()) c.refuse("rolls by other numbers than it has axes");
  if (is_flat) x = reshaped(c, x, {-1}), dims = {0};
  const Value y = c.made(x.axes, [&] {
    Tensor y = x.tensor;
    for (size_t i = 0; i < dims.size(); ++i) {
      const auto d = static_cast<size_t>(dims[i] < 0 ? dims[i] + std::ssize(x.axes) : dims[i]);
      const std::vector<Dim> along = c.dims(x.axes.at(d));
      if (along.empty()) continue;
      const Dim all = merged(along);
      y = unmerge(shift(merge(Call::having(y, along), along, all), all.name, shifts[i], true), all,
                  along);
    }
    return y;
  });
  return {is_flat ? reshaped(c, y, c.meta().sizes) : y};
}

/// The halves of the last axis change places, and the one that is first then is negative: as the
/// partners of rotary positions. The axis stays one.
std::vector<Value> turned_halves(Call& c) {
  const Value x = c.value("self");
  return {c.made(x.axes, [&] {
    const Axis& axis = x.axes.back();
    const Dim all("turned__halves", c.size(axis));
    Array sign(DType::float32, {all.name}, {all.size});
    for (int64_t i = 0; i < all.size; ++i) sign.data<float>()[i] = 2 * i < all.size ? -1 : 1;
    const std::vector<Dim> dims = c.dims(axis);
    const Tensor signs = unmerge(cast(tessera::constant(c.graph(), sign), c.dtype()), all, dims);
    const Dim one = merged(dims);
    const Tensor y = shift(one_dim(c, x.tensor, axis, one), one.name, all.size / 2, true);
    return unmerge(y, one, dims) * signs;
  })};
}

/// Axes at `source` stand at `destination`.
std::vector<Value> moved_axes(Call& c) {
  const Value x = c.value("self");
  const auto rank = std::ssize(x.axes);
  const std::vector<int64_t> source = c.list("source"), destination = c.list("destination");
  std::vector<int64_t> order(x.axes.size(), -1);
  std::vector<bool> is_moved(x.axes.size());
  for (size_t i = 0; i < source.size() && i < destination.size(); ++i) {
    const int64_t from = source[i] < 0 ? source[i] + rank : source[i],
                  to = destination[i] < 0 ? destination[i] + rank : destination[i];
    order.at(static_cast<size_t>(to)) = from, is_moved.at(static_cast<size_t>(from)) = true;
  }
  size_t next = 0;
  AxisList axes;
  for (int64_t& from : order) {
    if (from < 0) {
      while (is_moved[next]) ++next;
      from = static_cast<int64_t>(next++);
    }
    axes.push_back(x.axes[static_cast<size_t>(from)]);
  }
  return {c.moved(x, axes)};
}

/// The channels of a block of r x r pixels become those pixels, or the reverse.
template <bool to_pixels>
std::vector<Value> shuffled_pixels(Call& c) {
  Value x = c.value("self");
  const int64_t r =
      std::max<int64_t>(1, c.whole(to_pixels ? "upscale_factor" : "downscale_factor"));
  std::vector<int64_t> sizes = c.sizes(x);
  if (sizes.size() < 3) c.refuse("has an image without channels");
  const size_t at = sizes.size() - 3;
  const int64_t n = sizes[at], h = sizes[at + 1], w = sizes[at + 2];
  sizes.resize(at);
  for (const int64_t size : to_pixels ? std::vector<int64_t>{n / (r * r), r, r, h, w}
                                      : std::vector<int64_t>{n, h / r, r, w / r, r})
    sizes.push_back(size);
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  const std::vector<size_t> inner =
      to_pixels ? std::vector<size_t>{0, 3, 1, 4, 2} : std::vector<size_t>{0, 2, 4, 1, 3};
  for (size_t i = 0; i < 5; ++i) order[at + i] = at + inner[i];
  x = reordered(c, reshaped(c, x, sizes), order);
  return {reshaped(c, x, c.meta().sizes)};
}

std::vector<Value> shuffled_channels(Call& c) {
  Value x = c.value("self");
  const int64_t groups = std::max<int64_t>(1, c.whole("groups"));
  std::vector<int64_t> sizes = c.sizes(x);
  sizes.insert(sizes.begin() + 1, groups);
  sizes[2] /= groups;
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[1], order[2]);
  return {reshaped(c, reordered(c, reshaped(c, x, sizes), order), c.meta().sizes)};
}

/// x with windows of `size` elements of axis d, at steps, as a new last axis.
Value with_windows(Call& c, const Value& x, size_t d, int64_t size, int64_t step,
                   int64_t dilation = 1, int64_t padding = 0) {
  const int64_t n = c.size(x.axes[d]), span = dilation * (size - 1) + 1;
  if (size < 1 || step < 1 || n + 2 * padding < span) c.refuse("has windows that do not fit");
  AxisList axes = x.axes;
  axes[d] = {};
  axes[d] = c.fresh((n + 2 * padding - span) / step + 1, axes);
  axes.push_back(c.fresh(size, axes));
  return c.made(axes, [&] {
    const Dim from("windows__from", n), window("window__elements", size);
    WindowsOptions o;
    o.stride = step, o.dilation = dilation, o.before = o.after = padding;
    const Tensor y = windows(one_dim(c, x.tensor, x.axes[d], from), from.name, window, o);
    const Dim count(from.name, c.size(axes[d]));
    return dims_again(c, dims_again(c, y, window, axes.back()), count, axes[d]);
  });
}

std::vector<Value> unfolded(Call& c) {
  const Value x = c.value("self");
  if (x.axes.empty()) c.refuse("has windows of a scalar, which Tessera does not know");
  return {with_windows(c, x, c.axis("dimension", x.axes.size()), c.whole("size"), c.whole("step"))};
}

/// [n, channels, h, w] to [n, channels x window, places].
std::vector<Value> image_to_columns(Call& c) {
  Value x = c.value("self");
  const bool has_batch = x.axes.size() == 4;
  if (!has_batch) x.axes.insert(x.axes.begin(), Axis());
  const auto two = [&](const char* arg) {
    std::vector<int64_t> all = c.list(arg);
    if (all.size() == 1) all.push_back(all[0]);
    if (all.size() != 2) c.refuse("has no two numbers for its windows");
    return all;
  };
  const auto size = two("kernel_size"), step = two("stride"), dilation = two("dilation"),
             padding = two("padding");
  for (size_t i = 0; i < 2; ++i)
    x = with_windows(c, x, 2 + i, size[i], step[i], dilation[i], padding[i]);
  x = reordered(c, x, {0, 1, 4, 5, 2, 3});
  const std::vector<int64_t> sizes = c.sizes(x);
  Value y = reshaped(c, x, {sizes[0], sizes[1] * sizes[2] * sizes[3], sizes[4] * sizes[5]});
  if (!has_batch) y.axes.erase(y.axes.begin());
  return {y};
}

std::vector<Value> diagonal_of(Call& c) {
  const Value x = c.value("self");
  const size_t rank = x.axes.size(), i = c.axis("dim1", rank, 0), k = c.axis("dim2", rank, 1);
  const int64_t offset = c.whole("offset", 0), m = c.size(x.axes[k]);
  std::vector<size_t> order;
  for (size_t d = 0; d < rank; ++d)
    if (d != i && d != k) order.push_back(d);
  AxisList axes = reordered(c, x, order).axes;
  axes.emplace_back();
  for (const size_t d : {i, k})
    for (const Use& use : c.expand(x.axes[d])) axes.back().push_back(use);
  std::vector<int64_t> at;
  for (int64_t n = 0; n < c.meta().sizes.back(); ++n)
    at.push_back((n + std::max<int64_t>(0, -offset)) * m + n + std::max<int64_t>(0, offset));
  return {taken(c, c.moved(x, axes), axes.size() - 1, at)};
}

/// A matrix with these elements on its diagonal, and zeros.
std::vector<Value> diagonal_matrix(Call& c) {
  const Value x = c.value("self");
  if (c.node().target.find("diag.default") != std::string::npos && x.axes.size() == 2)
    c.refuse("takes a diagonal by diag(), which Tessera knows as diagonal()");
  if (c.whole("offset", 0) != 0 || c.whole("diagonal", 0) != 0 || c.whole("dim1", -2) != -2 ||
      c.whole("dim2", -1) != -1)
    c.refuse("writes another diagonal than the main one, which Tessera does not know");
  AxisList axes = x.axes;
  axes.push_back(axes.back());
  axes = c.distinct(axes);
  return {c.made(axes, [&] {
    const AxisList front(axes.begin(), axes.end() - 1);
    const Tensor y = Call::having(x.tensor, c.dims(front));
    return where(equal(c.positions(axes[axes.size() - 2]), c.positions(axes.back())), y,
                 zeros_like(y));
  })};
}

std::vector<Value> grid_of_axes(Call& c) {
  const std::vector<Value> xs = c.values("tensors");
  const bool turned = c.text("indexing", "ij") == "xy" && xs.size() > 1;
  std::string spec, all;
  for (size_t i = 0; i < xs.size(); ++i) all += static_cast<char>('a' + i);
  for (size_t i = 0; i < xs.size(); ++i) {
    if (xs[i].axes.size() != 1) c.refuse("makes a grid of other tensors than lists");
    spec += (i == 0 ? "" : ",") + all.substr(i, 1);
  }
  if (turned) std::swap(all[0], all[1]);
  std::vector<Value> results;
  for (size_t i = 0; i < xs.size(); ++i)
    results.push_back(c.joined(spec + "->" + all, {xs.begin(), xs.end()},
                               [&](const Joined& j) { return j.x[i]; }));
  return results;
}

/// Rows of several lists or matrices beside or above one another.
template <bool vertical>
std::vector<Value> beside(Call& c) {
  std::vector<Value> xs = c.values("tensors");
  for (Value& x : xs)
    while (x.axes.size() < (vertical ? 2u : 1u)) x.axes.insert(x.axes.begin(), Axis());
  return {concatenated(c, xs, vertical || xs.at(0).axes.size() == 1 ? 0 : 1, c.dtype())};
}

const Row kMoves[] = {
    {"pad.default constant_pad_nd.default reflection_pad1d.default reflection_pad2d.default "
     "replication_pad1d.default replication_pad2d.default",
     padded},
    {"flip.default", flipped},
    {"roll.default", rolled},
    {"tessera.turned_halves", turned_halves},
    {"movedim.int movedim.intlist", moved_axes},
    {"pixel_shuffle.default", shuffled_pixels<true>},
    {"pixel_unshuffle.default", shuffled_pixels<false>},
    {"channel_shuffle.default native_channel_shuffle.default", shuffled_channels},
    {"unfold.default", unfolded},
    {"im2col.default", image_to_columns},
    {"diagonal.default linalg_diagonal.default", diagonal_of},
    {"diag_embed.default diag.default", diagonal_matrix},
    {"meshgrid.default meshgrid.indexing", grid_of_axes},
    {"hstack.default", beside<false>},
    {"vstack.default", beside<true>},
};

}  // namespace

std::span<const Row> moving_rows() { return kMoves; }

}  // namespace tessera::pytorch
