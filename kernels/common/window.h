// The relation of a "window" or "fold" step, for all devices.
#pragma once

#include "kernels/common/kernel.h"

namespace tessera {

/// in = stride * out + dilation * k - lo along one dim, with `pre` elements before and `post` after
/// it. `size`, `out_size` and `window_size` are global; `..memory` are those of this rank's slices.
struct WindowSizes {
  explicit WindowSizes(const Attrs& a)
      : pre(a.get<int64_t>("pre")),
        post(a.get<int64_t>("post")),
        size(a.get<int64_t>("size")),
        memory(a.get<int64_t>("memory")),
        out_size(a.get<int64_t>("out_size")),
        out_memory(a.get<int64_t>("out_memory")),
        window_size(a.get<int64_t>("window_size")),
        window_memory(a.get<int64_t>("window_memory")),
        stride(a.get<int64_t>("stride")),
        dilation(a.get<int64_t>("dilation")),
        lo(a.get<int64_t>("lo")),
        wrap(a.get<int64_t>("wrap") != 0) {}

  int64_t pre, post, size, memory, out_size, out_memory, window_size, window_memory, stride,
      dilation, lo;
  bool wrap;
};

}  // namespace tessera
