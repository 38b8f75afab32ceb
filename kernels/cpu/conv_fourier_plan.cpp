// Which convolutions go through the Fourier domain, and how long their transforms are.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/conv_fourier.h"

namespace tessera::cpu {
namespace {

constexpr int64_t kVector = kFourierVector;
/// Of what is kept of a block of images between its passes: about a second-level cache, so that
/// the filter's spectrum, which every block reads whole, is read seldom.
constexpr int64_t kPlaneBytes = 1 << 20;
constexpr int64_t kMostBytes = 1 << 26;    // of workspace
constexpr int64_t kCachedBytes = 6 << 20;  // what a third-level cache may hold of a spectrum
/// How much less than the direct kernel's the cost must be, and the least places of a filter:
/// with fewer, little is won, and what is lost is that other places' numbers do not matter.
constexpr double kMargin = 1.3;
constexpr int64_t kLeastWindows = 16;

constexpr int64_t kLengths[] = {8, 12, 16, 20, 24, 32, 40, 48, 64, 72, 80, 96, 128, 160, 192, 256};

int64_t up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
int64_t ceil_of(int64_t n, int64_t d) { return (n + d - 1) / d; }
double real(int64_t n) { return static_cast<double>(n); }

/// Cycles of a transform of vectors.
double line_cost(int64_t n) { return n == 1 ? 2 : real(n) * (2 * std::log2(real(n)) + 8); }
/// And of taking a frequency of two lines apart, or of joining them.
constexpr double kSeparateCost = 8;

bool is_constant(const IntExpr& e) { return e.axis_terms.empty() && e.scalar < 0; }

/// Channels of an image, so that vectors begin with an image or lie in one.
int64_t scalar_lanes(int64_t channels) {
  int64_t lanes = 1;
  while (lanes < channels && lanes < kFourierLanes) lanes *= 2;
  return channels <= kFourierLanes ? lanes : up(channels, kFourierLanes);
}

}  // namespace

FourierPlan::FourierPlan(const Step& step, bool always)
    : result(step.attrs.get<int64_t>("result")) {
  const Sides sides(step);
  const Attrs& attrs = step.attrs;
  const size_t first = attrs.get<std::vector<int64_t>>("kinds").size();
  const size_t spatial = sides.x->sizes.size() - first;
  if (spatial < 1 || spatial > 2 || sides.x->dtype != DType::float32 || !has_factors(step)) return;
  for (const View* view : {sides.x, sides.filter, sides.y}) {
    if (view->elements() == 0) return;
  }
  images = count_of(step, kImages);
  groups = count_of(step, kGroup);
  a_channels = count_of(step, result == kOfX ? kOutputs : kInputs);
  b_channels = count_of(step, result == kOfX ? kInputs : kOutputs);
  a_lanes = scalar_lanes(a_channels);
  b_lanes = up(b_channels, kFourierLanes);
  int64_t needs[2] = {1, 1};
  for (size_t s = 0; s < spatial; ++s) {
    if (attrs.get<std::vector<int64_t>>("strides")[s] != 1 ||
        attrs.get<std::vector<int64_t>>("dilations")[s] != 1)
      return;
    const size_t d = s + 2 - spatial;
    const int64_t x = sides.x->sizes[first + s], y = sides.y->sizes[first + s];
    dims[d].windows = sides.filter->sizes[first + s];
    dims[d].size = result == kOfX ? x : y;
    dims[d].a = result == kOfX ? y : x;
    dims[d].b = result == kOfX ? x : y;
    needs[d] = y + dims[d].windows - 1;
    // Where all ranks see the same, what is seen of the padding is known.
    if (is_constant(step.exprs[3 * s]) && is_constant(step.exprs[3 * s + 1]) &&
        is_constant(step.exprs[3 * s + 2])) {
      KernelArgs any;
      any.step = &step;
      const WindowDim dim = window_dim(any, s);
      if (dim.empty) return;
      needs[d] = dim.x_size + std::max(dim.before, dim.after);
    }
  }
  // The direct kernels have vectors along the same channels, and are near the peak.
  double direct = real(images * groups * a_channels) * real(b_vectors());
  for (const FourierDim& d : dims) {
    direct *= real(std::min(d.a, d.b) * std::min(d.windows, std::max(d.a, d.b)));
  }
  const bool is_large = dims[0].windows * dims[1].windows >= kLeastWindows;
  const double best = choose_lengths(needs);
  applies = best > 0 && (always || (is_large && best * kMargin < direct));
}

/// The cost of what is chosen; -1 if no length is long enough in little enough workspace.
double FourierPlan::choose_lengths(const int64_t (&needs)[2]) {
  const auto dims_with = [&](int d) {
    std::vector<FourierDim> list;
    for (int64_t n : kLengths) {
      FourierDim dim = dims[d];
      dim.n = n;
      dim.tile = n >= needs[d] ? dim.size : n - dim.windows + 1;
      if (dim.tile < 1 || n < dim.windows) continue;
      dim.tile = std::min(dim.tile, dim.size);
      dim.a = std::min(dim.a, n);
      dim.b = std::min(dim.b, dim.tile);
      list.push_back(dim);
      if (n >= needs[d]) break;
    }
    if (dims[d].size == 1 && needs[d] == 1) list = {dims[d]};
    return list;
  };
  double best = -1;
  FourierDim chosen[2];
  for (const FourierDim& along : dims_with(0)) {
    for (const FourierDim& across : dims_with(1)) {
      dims[0] = along, dims[1] = across;
      choose_block();
      if (bytes() > kMostBytes) continue;
      const double now = cost();
      if (best < 0 || now < best) best = now, chosen[0] = along, chosen[1] = across;
    }
  }
  std::copy(chosen, chosen + 2, dims);
  choose_block();
  return best;
}

void FourierPlan::choose_block() {
  const int64_t unit = std::max<int64_t>(1, kFourierLanes / a_lanes);
  const int64_t all = up(images, unit);
  block = unit;
  const int64_t most = std::clamp(kPlaneBytes / (4 * planes()) * unit, unit, all);
  block = up(ceil_of(all, ceil_of(all, most)), unit);  // blocks of one size
}

/// Cycles of the step, as measured on a processor with AVX-512 that multiplies and adds a vector of
/// 16 a cycle: about 1.4 times what the arithmetic takes.
double FourierPlan::cost() const {
  const int64_t b = b_vectors(), n = dims[0].n, half = slots();
  const double column = line_cost(n), row = line_cost(dims[1].n);
  const int64_t blocks = ceil_of(images, block);
  const auto side = [&](int64_t lines, int64_t lanes) {
    const double two_lines = row + kSeparateCost * real(half);
    return (real(ceil_of(lines, 2)) * two_lines + real(half) * column) * real(lanes) / 16;
  };
  const auto copies = [&](int64_t channels, int64_t places) {
    return channels % kFourierLanes == 0 ? 0 : real(channels * places);
  };
  const double products = real(half * n * b) * real(4 * a_channels + 8);
  double of_image = side(dims[0].a, a_lanes) + side(dims[0].b, b_lanes) + products +
                    copies(a_channels, dims[0].a * dims[1].a) +
                    copies(b_channels, dims[0].b * dims[1].b);
  // Planes beyond the second-level cache are written and read twice.
  if (4 * planes() > 3 * kPlaneBytes / 2) of_image += real(planes()) / real(block);
  const int64_t tiles = ceil_of(dims[0].size, dims[0].tile) * ceil_of(dims[1].size, dims[1].tile);
  const bool is_cached = 4 * spectrum() <= kCachedBytes;
  const double of_filter =
      real(a_channels * b) * (1.5 * real(dims[0].windows) * row + 1.5 * real(half) * column +
                              real(24 * dims[0].windows * dims[1].windows)) +
      real(spectrum()) * (is_cached ? 0.5 : 2);
  const double of_block = real(spectrum()) * (is_cached ? 0.15 : 0.6);
  return 1.4 * real(groups) *
         (of_filter + real(tiles) * (real(images) * of_image + real(blocks) * of_block));
}

int64_t FourierPlan::spectrum() const {
  return slots() * dims[0].n * a_channels * b_vectors() * kVector;
}
int64_t FourierPlan::filter_plane() const { return dims[0].windows * slots() * kVector; }
int64_t FourierPlan::plane_row() const { return slots() * kVector; }
int64_t FourierPlan::plane() const { return up(std::max(dims[0].a, dims[0].b), 2) * plane_row(); }
int64_t FourierPlan::planes() const {
  const int64_t a = block * a_lanes / kFourierLanes, b = block * b_lanes / kFourierLanes;
  return plane() * (result == kOfFilter ? a + b : std::max(a, b));
}
int64_t FourierPlan::column_step(bool of_a) const {
  return 2 * block * (of_a ? a_lanes : b_lanes) + kFourierLanes;  // not a power of two
}
int64_t FourierPlan::line() const { return std::max(dims[0].n, dims[1].n) * kVector; }

int64_t FourierPlan::bytes() const {
  return 4 * (spectrum() + filter_plane() + planes() +
              dims[0].n * (column_step(true) + column_step(false)) + 3 * line());
}

int64_t FourierPlan::total() const { return applies ? bytes() : 0; }

}  // namespace tessera::cpu
