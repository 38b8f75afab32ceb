// Which convolutions run in oneDNN. A side with dense channels last is used in place, all images in
// one call. Any other is copied, as many images at a time as stay in the cache. The sizes of the
// library's orders and scratch memory are bounded independently of the processor, so that all ranks
// plan alike; if the library needs more, it is not used.
#include <algorithm>

#include "kernels/cpu/blas.h"
#include "kernels/cpu/conv_direct.h"

namespace tessera::cpu {
namespace {

constexpr int64_t kCopiedBytes = 1 << 18;    // of a copied side per call, approximately
constexpr int64_t kScratchBytes = 1 << 16;   // at least
constexpr int64_t kMost = int64_t{1} << 31;  // elements of a tensor: offsets must fit

/// For a gradient of x with fewer channels per group, the vectors over channels would be mostly
/// empty.
constexpr int64_t kLeastInputs = 8;

int64_t up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

/// If the dims of one kind follow `run` dense elements in order, without gaps: `run` times their
/// sizes. Otherwise, or if run is -1: -1.
int64_t dense_after(const View& view, const std::vector<Kind>& kinds, int64_t kind, int64_t run) {
  for (size_t d = kinds.size(); d-- > 0;) {
    if (kinds[d] != kind || view.sizes[d] == 1) continue;
    if (run < 0 || view.strides[d] != run) return -1;
    run *= view.sizes[d];
  }
  return run;
}

/// True if every image of the view is dense in the order spatial dims, groups, channels.
bool is_channels_last(const View& view, const std::vector<Kind>& kinds, Kind channels) {
  int64_t run = dense_after(view, kinds, kGroup, dense_after(view, kinds, channels, 1));
  for (size_t d = view.sizes.size(); d-- > kinds.size();) {
    if (view.sizes[d] != 1 && view.strides[d] != run) return false;
    run *= view.sizes[d];
  }
  return true;
}

/// True if the dims of a kind are walked as one.
bool is_one_dim(const View& view, const std::vector<Kind>& kinds, Kind kind) {
  int64_t run = 0;
  for (size_t d = kinds.size(); d-- > 0;) {
    if (kinds[d] != kind || view.sizes[d] == 1) continue;
    if (view.strides[d] <= 0 || (run != 0 && view.strides[d] != run)) return false;
    run = view.strides[d] * view.sizes[d];
  }
  return true;
}

/// True if every rank's slice of `size` is one of the equal parts of `whole`.
bool is_tile(const AffineExpr& begin, int64_t size, int64_t whole) {
  bool aligned = begin.scalar < 0 && begin.divisor == 1 && begin.constant == 0 && whole % size == 0;
  for (const auto& [axis, factor] : begin.axis_terms) aligned = aligned && factor % size == 0;
  return aligned;
}

/// True if a rank may have less of an image than the view: slices that reach beyond the image for
/// neighbours, or do not divide it. `which`: the expr of the three per dim that gives the view's
/// begin.
bool may_be_part(const Step& step, const View& view, size_t which,
                 std::vector<int64_t> ConvSpec::*sizes) {
  const auto& whole = step.as<ConvSpec>().*sizes;
  const size_t first = view.sizes.size() - whole.size();
  for (size_t s = 0; s < whole.size(); ++s) {
    const AffineExpr& begin = step.exprs[3 * s + which];
    const int64_t size = view.sizes[first + s];
    const bool is_inside = begin.axis_terms.empty() && begin.scalar < 0 && begin.constant >= 0 &&
                           begin.constant + size <= whole[s];
    if (!is_inside && !is_tile(begin, size, whole[s])) return true;
  }
  return false;
}

int64_t places(const View& view, size_t first) {
  int64_t n = 1;
  for (size_t d = first; d < view.sizes.size(); ++d) n *= view.sizes[d];
  return n;
}

}  // namespace

DirectPlan::DirectPlan(const Step& step) {
  const Sides sides(step);
  const auto& kinds = step.as<ConvSpec>().kinds;
  const size_t first = kinds.size(), dims = sides.x->sizes.size() - first;
  const DType dtype = sides.x->dtype;
  if (dims < 1 || dims > 3 || (dtype != DType::float32 && dtype != DType::bfloat16)) return;
  for (const View* view : {sides.x, sides.filter, sides.y}) {
    if (view->elements() == 0) return;
  }
  if (!has_factors(step)) return;
  for (Kind kind : {kGroup, kInputs, kOutputs}) {
    if (!is_one_dim(*sides.filter, kinds, kind)) return;
  }
  images = count_of(step, kImages);
  groups = count_of(step, kGroup);
  inputs = count_of(step, kInputs);
  outputs = count_of(step, kOutputs);
  const bool depthwise = groups > 1 && inputs == 1 && outputs == 1;
  if (sides.result == kOfX && !depthwise && inputs < kLeastInputs) return;
  item = size_of(dtype);
  // oneDNN 2.6 computes this gradient wrongly in bfloat16 for some windows, and writes out of
  // bounds.
  widened = dtype == DType::bfloat16 && sides.result == kOfFilter;
  const int64_t copied_item = widened ? 4 : item;
  const int64_t x_places = places(*sides.x, first), y_places = places(*sides.y, first);
  x = {.dense = !widened && is_channels_last(*sides.x, kinds, kInputs),
       .elements = groups * inputs * x_places};
  y = {.dense = !widened && is_channels_last(*sides.y, kinds, kOutputs),
       .elements = groups * outputs * y_places};
  x.copied = !x.dense || may_be_part(step, *sides.x, 0, &ConvSpec::in_sizes);
  y.copied = !y.dense || may_be_part(step, *sides.y, 1, &ConvSpec::out_sizes);
  const int64_t channels = depthwise    ? up(groups, 16)
                           : groups > 1 ? groups * up(inputs, 16) * up(outputs, 16)
                                        : up(inputs, 16) * up(outputs, outputs > 16 ? 64 : 16);
  filter_bytes = up(channels * places(*sides.filter, first) * 4, 64);
  if (images * x.elements >= kMost || images * y.elements >= kMost || filter_bytes >= kMost) return;
  if (x.copied || y.copied) {
    const int64_t bytes =
        std::max(x.copied ? x.elements : 0, y.copied ? y.elements : 0) * copied_item;
    copied_images = std::clamp<int64_t>(kCopiedBytes / bytes, 1, images);
    while (images % copied_images != 0) --copied_images;
  }
  if (x.copied) x.bytes = up(copied_images * x.elements * copied_item, 64);
  if (y.copied) y.bytes = up(copied_images * y.elements * copied_item, 64);
  if (sides.result == kOfFilter && images > 1) sums_bytes = filter_bytes;
  scratch_bytes = kScratchBytes;
  if (item == 2 && !widened)
    scratch_bytes += up(4 * std::max(x.elements, y.elements), 64);  // one side in float32
  applies = true;
}

int64_t DirectPlan::total() const {
  return applies ? x.bytes + y.bytes + filter_bytes + sums_bytes + scratch_bytes : 0;
}

std::vector<WindowDim> direct_dims(const KernelArgs& args) {
  const Sides sides(*args.step);
  const bool one_input = sides.result == kOfY && count_of(*args.step, kInputs) == 1;
  std::vector<WindowDim> dims = window_dims(args);
  for (const WindowDim& d : dims) {
    const int64_t most = d.dilation * (d.windows - 1) + 1;
    if (d.empty || (one_input && d.y_size == 1 && d.windows > 1)) return {};
    if (sides.result == kOfFilter && std::max(d.before, d.after) > most / 2) return {};
  }
  return dims;
}

}  // namespace tessera::cpu
