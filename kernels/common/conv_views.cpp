// The views of a convolution on one rank.
#include "kernels/common/conv_views.h"

#include "kernels/common/nest.h"

namespace tessera::kernels {

void* data_of(const KernelArgs& args, const View* view) {
  const Step& step = *args.step;
  return view == &step.out[0]  ? args.out[0].data
         : view == &step.in[0] ? args.in[0].data
                               : args.in[1].data;
}

bool has_factors(const Step& step) {
  const Sides sides(step);
  const auto& kinds = step.as<ConvSpec>().kinds;
  const auto has = [&](const View& view, Kind missing) {
    for (size_t d = 0; d < kinds.size(); ++d) {
      if (view.sizes[d] != (kinds[d] == missing ? 1 : factor_size(step, d))) return false;
    }
    return true;
  };
  return has(*sides.x, kOutputs) && has(*sides.y, kInputs) && has(*sides.filter, kImages);
}

std::vector<int64_t> offsets_of(const Step& step, Kind kind, const std::vector<int64_t>& strides) {
  const auto& kinds = step.as<ConvSpec>().kinds;
  std::vector<int64_t> offsets = {0};
  for (size_t d = 0; d < kinds.size(); ++d) {
    if (kinds[d] != kind) continue;
    std::vector<int64_t> longer;
    for (int64_t at : offsets) {
      for (int64_t i = 0; i < factor_size(step, d); ++i) longer.push_back(at + i * strides[d]);
    }
    offsets = std::move(longer);
  }
  return offsets;
}

WindowDim window_dim(const KernelArgs& args, size_t s) {
  const Step& step = *args.step;
  const Sides sides(step);
  const auto& c = step.as<ConvSpec>();
  const size_t first = c.kinds.size();
  const int base = static_cast<int>(3 * s);
  const int64_t in_begin = eval(args, base), out_begin = eval(args, base + 1),
                window_begin = eval(args, base + 2);
  WindowDim d;
  d.stride = c.strides[s];
  d.dilation = c.dilations[s];
  d.y_first = std::max<int64_t>(0, -out_begin);
  d.y_size = std::min(sides.y->sizes[first + s], c.out_sizes[s] - out_begin) - d.y_first;
  d.windows = std::min(sides.filter->sizes[first + s], c.window_sizes[s] - window_begin);
  // The elements of x that exist, without those that no window reads; the rest of a window is
  // padding.
  d.x_first = std::max<int64_t>(0, -in_begin);
  int64_t end = std::min(sides.x->sizes[first + s], c.in_sizes[s] - in_begin);
  const int64_t seen =
      d.stride * (d.y_first + out_begin) + d.dilation * window_begin - c.los[s] - in_begin;
  const int64_t span = d.dilation * (d.windows - 1) + 1;
  const int64_t seen_end = seen + d.stride * (d.y_size - 1) + span;
  d.x_first = std::max(d.x_first, seen);
  d.before = d.x_first - seen;
  if (end - seen_end >= d.stride) end = seen_end;  // else the library skips the rest itself
  d.after = seen_end - end;
  d.x_size = end - d.x_first;
  d.empty = window_begin < 0 || d.y_size < 1 || d.windows < 1 || d.x_size < 1 ||
            std::max(d.before, d.after) > span - 1;
  return d;
}

std::vector<WindowDim> window_dims(const KernelArgs& args) {
  std::vector<WindowDim> dims;
  const Sides sides(*args.step);
  const size_t first = args.step->as<ConvSpec>().kinds.size();
  for (size_t s = 0; first + s < sides.x->sizes.size(); ++s) dims.push_back(window_dim(args, s));
  return dims;
}

}  // namespace tessera::kernels
