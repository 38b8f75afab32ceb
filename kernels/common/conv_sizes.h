// How much a convolution packs at a time. Decided from views and attributes only, so that the
// workspace can be planned.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/common/conv_views.h"
#include "kernels/common/types.h"

namespace tessera::kernels {

constexpr int64_t kBlockBytes = 1 << 18;  // of packed patches
constexpr int64_t kLeastShifted = 64;  // rows and contraction length of a shifted product, at least

struct Sizes {
  explicit Sizes(const Step& step) {
    const Sides sides(step);
    const auto& kinds = step.as<ConvSpec>().kinds;
    inputs = count_of(step, kInputs);
    outputs = count_of(step, kOutputs);
    int64_t places = 1;
    for (size_t d = kinds.size(); d < sides.filter->sizes.size(); ++d)
      places *= sides.filter->sizes[d];
    whole = patch = std::max<int64_t>(1, places * inputs);
    wide = sides.x->dtype == DType::float64 ? 8 : 4;
    block = std::clamp<int64_t>(kBlockBytes / (patch * wide), 8, 1024);
    narrow = is_narrow(sides.x->dtype);
    if (narrow && sides.result == kOfX) wide_x = reach(*sides.x);
    if (kinds.size() < sides.y->sizes.size()) shift(step, sides, kinds.size());
  }
  /// Leaves the window of the first spatial dim (dim `d` of the views) out of the patches, if the
  /// products stay large enough and the workspace does not grow.
  void shift(const Step& step, const Sides& sides, size_t d) {
    const int64_t windows = sides.filter->sizes[d], outs = sides.y->sizes[d];
    int64_t others = 1;
    for (size_t s = d + 1; s < sides.y->sizes.size(); ++s) others *= sides.y->sizes[s];
    if (step.as<ConvSpec>().strides[0] != 1 || windows < 2 || outs < 1) return;
    const int64_t halo = step.as<ConvSpec>().dilations[0] * (windows - 1);
    const int64_t length = patch / windows, bytes = std::max<int64_t>(1, others * length * wide);
    const int64_t n = std::min(outs, patches() * wide / bytes - halo);  // in no more memory
    if (length < kLeastShifted || n < std::max<int64_t>(1, halo) || n * others < kLeastShifted)
      return;
    lines = n;
    patch = length;
    packed = (n + halo) * others;
    block = n * others;
  }
  /// Elements of the parts of the workspace: patches, filter, outputs (rows), x.
  int64_t patches() const { return (lines > 0 ? packed : block) * patch; }
  int64_t filter() const { return whole * outputs; }
  int64_t rows() const { return block * outputs; }
  int64_t total() const { return (patches() + filter() + rows() + wide_x) * wide; }

  int64_t inputs, outputs, wide, wide_x = 0;
  int64_t patch, whole;           ///< length of a packed patch, and with all window positions
  int64_t block;                  ///< rows of a product
  int64_t lines = 0, packed = 0;  ///< if shifted: lines of y per block, and packed patches
  bool narrow;
};

}  // namespace tessera::kernels
