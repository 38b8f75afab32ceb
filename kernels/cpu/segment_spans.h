// Which keys are of the segment of each query.
#pragma once

#include <cstdint>

#include "kernels/common/kernel.h"

namespace tessera::cpu {

/// Keys from begin to end, or none.
struct Span {
  int32_t begin = 0, end = 0;
  Span() = default;
  Span(int64_t from, int64_t to)
      : begin(static_cast<int32_t>(from)), end(static_cast<int32_t>(to)) {}
  int64_t size() const { return end - begin; }
};

/// int32 ids of a row, `stride` apart; `first` is the position of the first in the whole sequence.
struct SegmentIds {
  const int32_t* data = nullptr;
  int64_t size = 0, stride = 1, first = 0;
  int32_t operator[](int64_t i) const { return data[i * stride]; }
};

/// Sets the span of each query: the keys with its id, none for 0. If ids of either side go back,
/// but for zeros at the end, reports a fault, and all spans are empty. The time is linear in the
/// number of queries and keys.
void find_segment_spans(const SegmentIds& queries, const SegmentIds& keys, Span* spans,
                        DataFault* fault);

}  // namespace tessera::cpu
