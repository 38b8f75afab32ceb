// The index relation between dims, as an op; see window.cpp.
#pragma once

#include "tessera/ops.h"

namespace tessera {

struct WindowOptions {
  int64_t stride = 1, dilation = 1;  ///< -1: a reversal, of all elements and without a window
  int64_t lo = 0;                    ///< in = stride * out + dilation * k - lo
  bool wrap = false;  ///< a rotation: indices outside wrap around; false: they read `fill`
  double fill = 0;
  std::string window = {};  ///< the dim of k, placed after `out`; "" for none
  int64_t window_size = 1;
};
/// x with dim `dim` replaced by `out` and the window dim.
Tensor window(Tensor x, const std::string& dim, const Dim& out, const WindowOptions& options,
              Loc at = Loc::current());
/// x with the elements of `dim`, which is not bounded, in the opposite order.
Tensor reversed(Tensor x, const std::string& dim, Loc at = Loc::current());

}  // namespace tessera
