// Ids ascend, so one pass over both sides finds the keys of each segment. Zeros at the end are
// padding.
#include "kernels/cpu/segment_spans.h"

#include <fmt/format.h>

#include <algorithm>

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
      fault->message = fmt::format(
          "the segments of the {} go back from {} to {} at position {}; number the documents of a "
          "row upwards, with 0 only for padding at its end",
          what, ids[i - 1], ids[i], ids.first + i);
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
  Span segment;
  for (int64_t i = 0; i < last; ++i) {
    const int32_t id = queries[i];
    if (i > 0 && id == queries[i - 1]) {
      spans[i] = spans[i - 1];
      continue;
    }
    segment.begin = segment.end;
    while (segment.begin < end && keys[segment.begin] < id) ++segment.begin;
    segment.end = segment.begin;
    while (segment.end < end && keys[segment.end] == id) ++segment.end;
    if (id != 0) spans[i] = segment;
  }
}

}  // namespace tessera::cpu
