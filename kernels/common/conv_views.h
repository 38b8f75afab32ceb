// The views of a convolution as x, filter and y, the kinds of their factors, and the spatial dims
// on one rank. Shared by all implementations.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/common/kernel.h"
#include "program/program.h"

namespace tessera::kernels {

using enum conv_kinds::DimKind;
using enum conv_kinds::Result;
using Kind = conv_kinds::DimKind;

/// The views as x, filter and y.
struct Sides {
  explicit Sides(const Step& step) : result(step.as<ConvSpec>().result) {
    const View &a = step.in.at(0), &b = step.in.at(1), &c = step.out.at(0);
    x = result == kOfX ? &c : &a;
    filter = result == kOfFilter ? &c : &b;
    y = result == kOfY ? &c : result == kOfX ? &a : &b;
  }
  conv_kinds::Result result;
  const View *x, *filter, *y;
};

/// The size of factor `d`. Views without it have size 1 there.
inline int64_t factor_size(const Step& step, size_t d) {
  return std::max({step.in[0].sizes[d], step.in[1].sizes[d], step.out[0].sizes[d]});
}

inline int64_t count_of(const Step& step, Kind kind) {
  const auto& kinds = step.as<ConvSpec>().kinds;
  int64_t n = 1;
  for (size_t d = 0; d < kinds.size(); ++d) n *= kinds[d] == kind ? factor_size(step, d) : 1;
  return n;
}

/// Elements of memory from the first to the last element of a view.
inline int64_t reach(const View& view) {
  int64_t n = 1;
  for (size_t d = 0; d < view.sizes.size(); ++d) n += (view.sizes[d] - 1) * view.strides[d];
  return n;
}

/// The address of the operand or result whose view is `view`.
void* data_of(const KernelArgs& args, const View* view);

/// True if each view has exactly the step's factors of its own kinds.
bool has_factors(const Step& step);

/// The offsets in one view of all indices of the factors of one kind; the order is the same for all
/// views.
std::vector<int64_t> offsets_of(const Step& step, Kind kind, const std::vector<int64_t>& strides);

/// One spatial dim on this rank: a box of x, one of y and a window, where in = stride * out +
/// dilation * window - before.
struct WindowDim {
  int64_t x_first = 0, x_size = 0, y_first = 0, y_size = 0, windows = 0;
  int64_t stride = 1, dilation = 1, before = 0, after = 0;
  bool empty = false;  ///< no window reads anything, or a whole window may lie in the padding
};

/// Spatial dim `s` of the step on this rank; all spatial dims.
WindowDim window_dim(const KernelArgs& args, size_t s);
std::vector<WindowDim> window_dims(const KernelArgs& args);

}  // namespace tessera::kernels
