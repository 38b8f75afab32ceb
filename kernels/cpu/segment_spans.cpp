// Ids ascend, so the keys of each segment are found by bisection. Zeros at the end are padding.
#include "kernels/cpu/segment_spans.h"

#include <algorithm>

#include "kernels/common/segments.h"
#include "kernels/common/segments_fault.h"

namespace tessera::cpu {

namespace {

/// The end of the ids without the zeros at the end.
int64_t end_of(const SegmentIds& ids) {
  int64_t end = ids.size;
  while (end > 0 && ids[end - 1] == 0) --end;
  return end;
}

/// False, and a fault, if ids go back.
bool ascends(const SegmentIds& ids, int64_t end, const char* what, DataFault* fault) {
  for (int64_t i = 1; i < end; ++i) {
    if (ids[i] >= ids[i - 1]) continue;
    if (fault != nullptr && !fault->set) {
      fault->set = true;
      fault->message = kernels::segments_go_back(what, ids[i - 1], ids[i], ids.first + i);
    }
    return false;
  }
  return true;
}

}  // namespace

void find_segment_spans(const SegmentIds& queries, const SegmentIds& keys, Span* spans,
                        DataFault* fault) {
  std::fill(spans, spans + queries.size, Span{});
  const int64_t last = end_of(queries), end = end_of(keys);
  if (!ascends(queries, last, "queries", fault) || !ascends(keys, end, "keys", fault)) return;
  for (int64_t i = 0; i < last; ++i) {
    if (i > 0 && queries[i] == queries[i - 1]) {
      spans[i] = spans[i - 1];
      continue;
    }
    const PositionRange segment = kernels::positions_of(keys, end, queries[i]);
    spans[i] = {segment.begin, segment.end};
  }
}

}  // namespace tessera::cpu
