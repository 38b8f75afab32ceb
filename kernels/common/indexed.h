// Shared by gather and scatter_add: global index to local position, and reports of bad indices.
#pragma once

#include <string>

#include "kernels/common/nest.h"

namespace tessera::kernels {

/// The indexed dim as one rank sees it: n logical rows, of which [first, first + size) are here.
struct IndexedDim {
  OutOfRange rule = OutOfRange::drop;
  int64_t first = 0, size = 0, n = 0;

  static constexpr int64_t kElsewhere = -1, kNowhere = -2;

  /// The local row of index i; kElsewhere if another rank has it, kNowhere if it is out of range.
  /// Sets `bad` if that is under `error`.
  int64_t local(int64_t i, bool& bad) const {
    if (i < 0 || i >= n) {
      if (rule != OutOfRange::clamp || n == 0) {
        bad |= rule == OutOfRange::error;
        return kNowhere;
      }
      i = i < 0 ? 0 : n - 1;
    }
    const int64_t row = i - first;
    return row >= 0 && row < size ? row : kElsewhere;
  }
};

/// Reports the first bad index, in row-major order of the index dims (those with an index stride).
void report_bad_index(const KernelArgs& args, const TensorArg& indices,
                      const std::vector<int64_t>& sizes, int64_t n);

/// The index at `offset`.
inline int64_t index_at(const TensorArg& indices, int64_t offset) {
  return indices.dtype == DType::int64 ? static_cast<const int64_t*>(indices.data)[offset]
                                       : static_cast<const int32_t*>(indices.data)[offset];
}

}  // namespace tessera::kernels
