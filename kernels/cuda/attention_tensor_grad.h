// The gradient of attention on tensor cores; see kernels/cuda/attention_tensor.h, and for the two
// kernels kernels/cuda/attention.h. Score gradients are rounded to the operands' type before the
// multiplication by the scale, which is applied to the final sums.
#pragma once

#include "kernels/cuda/attention_tensor.h"

namespace tessera::device {

/// Two numbers for each of a thread's rows: log2 of the sum of exponentials, and the dot product of
/// the result with its gradient.
template <class C>
struct RowNumbers {
  float logarithm[2] = {0.0f, 0.0f}, inner[2] = {0.0f, 0.0f};

  template <class L>
  __device__ __forceinline__ RowNumbers(int first, const L& log_sum, const L& dot) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first + warp_row() + r * 8;
      if (row >= C::kLength) continue;
      logarithm[r] = log_sum.at(row) * kLog2E;
      inner[r] = dot.at(row);
    }
  }
};

/// A weight times the slope of its logit. Without weight the score may be masked, that is infinite.
template <class C>
__device__ __forceinline__ float times_slope(float weight, float score) {
  if constexpr (!C::kCapped) {
    return weight;
  } else {
    return weight == 0.0f ? 0.0f : weight * (1.0f - score * score);
  }
}

/// Turns `scores` into score gradients. `back`: the dot products of the result's gradient with the
/// values.
template <class C>
__device__ __forceinline__ void weigh(const RowNumbers<C>& numbers, Scores<C>& scores,
                                      const Scores<C>& back) {
#pragma unroll
  for (int n = 0; n < C::kTile / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float weight =
          exp2_fast(math::fma(scores[n][i], RowSoftmax<C>::unit(), -numbers.logarithm[i / 2]));
      scores[n][i] = times_slope<C>(weight, scores[n][i]) * (back[n][i] - numbers.inner[i / 2]);
    }
  }
}

/// As add_diagonals(), of a warp's 16 rows from `first` on, to the warp's own entries.
template <class C>
__device__ __forceinline__ void add_diagonals_of_warp(const Scores<C>& gradients, int first,
                                                      long long behind, float* entries) {
  using At = AtPositions<C>;
  constexpr int kMost = C::kTile - 1, kAll = C::kTile + 15;  // keys ahead of the first query; all
  __shared__ float all_tiles[C::kWarps][16][C::kTile + 1], all_diagonals[C::kWarps][kAll];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  auto& tile = all_tiles[warp];
  float* const diagonals = all_diagonals[warp];
#pragma unroll
  for (int n = 0; n < C::kTile / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = warp_row() + i / 2 * 8;
      tile[row][n * 8 + warp_column() + i % 2] = first + row < C::kLength ? gradients[n][i] : 0.0f;
    }
  }
  __syncwarp();
  for (int d = warp_lane(); d < kAll; d += 32) {
    const int further = d - kMost;  // query minus key
    float sum = 0.0f;
    for (int row = further > 0 ? further : 0; row < 16 && row - further <= kMost; ++row)
      sum += tile[row][row - further];
    diagonals[d] = sum;
  }
  __syncwarp();
  const int end = At::entry(behind + 15) + 1;
  for (int e = At::entry(behind - kMost) + warp_lane(); e < end; e += 32) {
    float sum = 0.0f;
    for (int d = 0; d < kAll; ++d) {
      if (At::entry(behind + d - kMost) == e) sum += diagonals[d];
    }
    entries[e] += sum;
  }
  __syncwarp();
}

/// The gradient of one block of queries.
template <class C, class Q, class K, class V, class G, class D, class L>
__device__ __forceinline__ void tensor_attention_grad_queries(
    int block, const Sees<C, Side::queries>& sees, const Q& q, const K& k, const V& v, const G& g,
    const D& dq, const L& log_sum, const L& dot, float* entries) {
  __shared__ NarrowTile<C> keys[2], values[2];
  const int first = first_of_warp<C>(block);
  const WarpSees<C, Side::queries> warp(first, sees);
  const Span walked = warp.of_block();
  OwnRows<C> queries, grads;
  queries.load(q, first, C::kLength);
  grads.load(g, first, C::kLength);
  const RowNumbers<C> numbers(first, log_sum, dot);
  Sums<C> sums = {};
  entries += static_cast<int>(threadIdx.x) / 32 * C::kEntries;
  for (int e = warp_lane(); e < C::kEntries; e += 32) entries[e] = 0.0f;
  walk_tiles<C::kTile>(
      walked.begin, walked.end,
      [&](int key, int stage) {
        fetch<C>(k, key, C::kMemory, keys[stage]);
        fetch<C>(v, key, C::kMemory, values[stage]);
      },
      [&](int key, int stage) {
        if (!warp.sees_tile(key)) return;
        Scores<C> scores, back;
        Weights<C> weights;
        score_rows<C>(queries, keys[stage], scores);
        score_rows<C>(grads, values[stage], back);
        squash<C>(scores);
        add_biases(sees, sees.own, first, key, scores);
        warp.hide(key, scores);
        drop<C>(kept_scores(sees, sees.own, first, key), back);
        weigh<C>(numbers, scores, back);
        if constexpr (C::kEntries > 0)
          add_diagonals_of_warp<C>(scores, first, sees.first_query + first - sees.first_key - key,
                                   entries);
        round_weights<C>(scores, weights);
        add_rows<C>(weights, keys[stage], sums);
      });
  const float scale[2] = {C::scale(), C::scale()};
  store_rows<C>(sums, scale, dq, first, C::kLength);
}

/// The two numbers for each query of a tile.
template <class C>
struct alignas(16) TileNumbers {
  float logarithm[C::kTile], inner[C::kTile];

  template <class L, class P>
  __device__ __forceinline__ void fetch(const L& log_sum, const P& dot, int first) {
    const int e = static_cast<int>(threadIdx.x);
    static_assert(2 * C::kTile <= kThreads<C>, "a thread has one number");
    if (e >= 2 * C::kTile) return;
    const int row = e % C::kTile;
    const bool there = first + row < C::kLength;
    const int from = there ? first + row : first;
    copy_async<4>(e < C::kTile ? &logarithm[row] : &inner[row],
                  e < C::kTile ? &log_sum.at(from) : &dot.at(from), there);
  }
};

/// Adds the contribution of one tile of queries to the gradients of a warp's keys and values.
template <class C, class Keys, class Values>
__device__ __forceinline__ void add_queries(
    const Keys& keys, const Values& values, const Sees<C, Side::keys>& sees,
    const AtPositions<C>& of, int first, const WarpSees<C, Side::keys>& seen, int query,
    const NarrowTile<C>& queries, const NarrowTile<C>& grads, const TileNumbers<C>& numbers,
    Sums<C>& key_sums, Sums<C>& value_sums) {
  Scores<C> scores, back;
  Weights<C> weights;
  score_rows<C>(keys, queries, scores);
  squash<C>(scores);
  add_biases(sees, of, first, query, scores);
  seen.hide(query, scores);
  const uint32_t kept = kept_scores(sees, of, first, query);
#pragma unroll
  for (int n = 0; n < C::kTile / 8; ++n) {
    const auto logarithm = device::load<2>(&numbers.logarithm[n * 8 + warp_column()]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float weight =
          exp2_fast(math::fma(scores[n][i], RowSoftmax<C>::unit(), logarithm.x[i % 2] * -kLog2E));
      scores[n][i] = times_slope<C>(weight, scores[n][i]);
      back[n][i] = weight;
    }
  }
  drop<C>(kept, back);
  round_weights<C>(back, weights);
  add_rows<C>(weights, grads, value_sums);
  score_rows<C>(values, grads, back);
  drop<C>(kept, back);
#pragma unroll
  for (int n = 0; n < C::kTile / 8; ++n) {
    const auto inner = device::load<2>(&numbers.inner[n * 8 + warp_column()]);
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[n][i] *= back[n][i] - inner.x[i % 2];
  }
  round_weights<C>(scores, weights);
  add_rows<C>(weights, queries, key_sums);
}

/// The gradients of one block of keys and values. `of(s)`: the Queries of sharer s. C::kFree: the
/// block's keys and values are in registers; otherwise in shared memory.
template <class C, class K, class V, class Of, class DK, class DV>
__device__ __forceinline__ void tensor_attention_grad_keys(long long block,
                                                           const Sees<C, Side::keys>& sees,
                                                           const K& k, const V& v,
                                                           long long sharers, const Of& of,
                                                           const DK& dk, const DV& dv) {
  __shared__ NarrowTile<C> queries[2], grads[2];
  __shared__ TileNumbers<C> numbers[2];
  const int first = first_of_warp<C>(block);
  const WarpSees<C, Side::keys> seen(first, sees);
  const Span walked = seen.of_block();
  Sums<C> key_sums = {}, value_sums = {};
  const auto walk = [&](const auto& keys, const auto& values) {
    for (long long s = 0; s < sharers; ++s) {
      if (s > 0) __syncthreads();
      const auto theirs = of(s);
      walk_tiles<C::kTile>(
          walked.begin, walked.end,
          [&](int query, int stage) {
            fetch<C>(theirs.q, query, C::kLength, queries[stage]);
            fetch<C>(theirs.g, query, C::kLength, grads[stage]);
            numbers[stage].fetch(theirs.log_sum, theirs.dot, query);
          },
          [&](int query, int stage) {
            if (first >= C::kMemory || !seen.sees_tile(query)) return;
            add_queries<C>(keys, values, sees, theirs.own, first, seen, query, queries[stage],
                           grads[stage], numbers[stage], key_sums, value_sums);
          });
    }
  };
  if constexpr (C::kFree) {
    OwnRows<C> keys, values;
    keys.load(k, first, C::kMemory);
    values.load(v, first, C::kMemory);
    walk(keys, values);
  } else {
    __shared__ NarrowTile<C, kOwn<C>> keys, values;
    fetch<C>(k, block * kOwn<C>, C::kMemory, keys);
    fetch<C>(v, block * kOwn<C>, C::kMemory, values);
    walk(SharedRows<C>(keys), SharedRows<C>(values));
    wait_copies();
  }
  const float one[2] = {1.0f, 1.0f}, scale[2] = {C::scale(), C::scale()};
  store_rows<C>(key_sums, scale, dk, first, C::kMemory);
  store_rows<C>(value_sums, one, dv, first, C::kMemory);
}

}  // namespace tessera::device
