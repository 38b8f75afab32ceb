// Which keys are of the segment of each query, and which queries of that of each key, as intervals
// that attention skips and masks by. Runs before attention, whose workspace holds the spans.
//
// A block looks through all ids of a row for their end and for ids that go back; neighbouring
// threads read neighbouring ids. Then each of its threads bisects the other side's ids for a few
// positions: reads of some 10 cached numbers each.
#pragma once

#include "kernels/common/segments.h"
#include "kernels/cuda/device.h"

namespace tessera::device {

constexpr int kSpanThreads = 256;
constexpr int kSpanChunk = 1024;  ///< positions of a block

/// Positions from begin to end - 1.
struct alignas(8) Span {
  int begin, end;
};

template <long long kStride>
struct SegmentIds {
  const int32_t* data;
  __device__ __forceinline__ int32_t operator[](long long i) const { return data[i * kStride]; }
};

/// What a block finds in the ids of one side.
struct IdsFound {
  int end;   ///< without the zeros at the end
  int back;  ///< the first that is less than the one before it; kNone: none is, but for zeros
  static constexpr int kNone = 0x7fffffff;
  __device__ __forceinline__ bool ascend() const { return back >= end; }
};

template <class Ids>
__device__ __forceinline__ IdsFound look_through(const Ids& ids, int size, int* shared) {
  int end = 0, back = IdsFound::kNone;
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kSpanThreads) {
    const int id = ids[i];
    if (id != 0) end = i + 1;
    if (i > 0 && id < ids[i - 1] && i < back) back = i;
  }
  end = reduce_threads<Max, kSpanThreads>(end, shared);
  return {end, reduce_threads<Min, kSpanThreads>(back, shared)};
}

template <class Ids>
__device__ __forceinline__ void report_back(const Ids& ids, int back, long long first,
                                            long long kind, unsigned long long step, Fault* fault) {
  if (threadIdx.x != 0 || atomicCAS(&fault->step, 0ull, step) != 0) return;
  fault->kind = kind;
  fault->index = ids[back];
  fault->position = first + back;
  fault->size = ids[back - 1];
}

/// Spans of the positions of chunk `chunk` of `own`: of the queries, then (kBoth) of the keys.
/// Where ids of a side go back, all spans are empty, and the block of the first chunk reports it.
template <bool kBoth, class Queries, class Keys>
__device__ __forceinline__ void find_spans(int chunk, const Queries& queries, int query_count,
                                           const Keys& keys, int key_count, long long first_query,
                                           long long first_key, Span* of_queries, Span* of_keys,
                                           unsigned long long step, Fault* fault) {
  __shared__ int shared[kSpanThreads / 32];
  const IdsFound in_queries = look_through(queries, query_count, shared);
  const IdsFound in_keys = look_through(keys, key_count, shared);
  const bool good = in_queries.ascend() && in_keys.ascend();
  if (!good && chunk == 0) {
    if (!in_queries.ascend()) {
      report_back(queries, in_queries.back, first_query, kQuerySegmentsFault, step, fault);
    } else {
      report_back(keys, in_keys.back, first_key, kKeySegmentsFault, step, fault);
    }
  }
  for (int k = static_cast<int>(threadIdx.x); k < kSpanChunk; k += kSpanThreads) {
    const int i = chunk * kSpanChunk + k;
    if (i < query_count) {
      const PositionRange span =
          good ? kernels::positions_of(keys, in_keys.end, queries[i]) : PositionRange{};
      of_queries[i] = {static_cast<int>(span.begin), static_cast<int>(span.end)};
    }
    if (kBoth && i < key_count) {
      const PositionRange span =
          good ? kernels::positions_of(queries, in_queries.end, keys[i]) : PositionRange{};
      of_keys[i] = {static_cast<int>(span.begin), static_cast<int>(span.end)};
    }
  }
}

}  // namespace tessera::device
