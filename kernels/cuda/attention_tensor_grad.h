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
      scores[n][i] = weight * (back[n][i] - numbers.inner[i / 2]);
    }
  }
}

/// The gradient of one block of queries.
template <class C, class Q, class K, class V, class G, class D, class L>
__device__ __forceinline__ void tensor_attention_grad_queries(int block, long long first_query,
                                                              long long first_key, const Q& q,
                                                              const K& k, const V& v, const G& g,
                                                              const D& dq, const L& log_sum,
                                                              const L& dot) {
  __shared__ NarrowTile<C> keys[2], values[2];
  const int first = first_of_warp<C>(block);
  const Sight<C> sight(first, first_query, first_key);
  const int end = keys_of<C>((block + 1) * kOwn<C> - 1, first_query, first_key);
  OwnRows<C> queries, grads;
  queries.load(q, first, C::kLength);
  grads.load(g, first, C::kLength);
  const RowNumbers<C> numbers(first, log_sum, dot);
  Sums<C> sums = {};
  walk_tiles<C::kTile>(
      0, end,
      [&](int key, int stage) {
        fetch<C>(k, key, C::kMemory, keys[stage]);
        fetch<C>(v, key, C::kMemory, values[stage]);
      },
      [&](int key, int stage) {
        if (key >= sight.most) return;
        Scores<C> scores, back;
        Weights<C> weights;
        score_rows<C>(queries, keys[stage], scores);
        score_rows<C>(grads, values[stage], back);
        sight.hide(key, scores);
        weigh<C>(numbers, scores, back);
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

/// The first query that attends to each of a warp's keys: queries before `least` attend to none,
/// from `most` on to all.
template <class C>
struct SeenFrom {
  static constexpr bool kHides = C::kCausal || C::kAllKeys != 0;
  static constexpr int kNever = C::kLength + C::kTile;
  int least, most, from[2];
  __device__ __forceinline__ SeenFrom(int first, long long first_query, long long first_key)
      : least(of(first, first_query, first_key)),
        most(of(first + 15, first_query, first_key)),
        from{of(first + warp_row(), first_query, first_key),
             of(first + warp_row() + 8, first_query, first_key)} {}

  static __device__ __forceinline__ int of(int key, long long first_query, long long first_key) {
    if (C::kAllKeys != 0 && first_key + key >= C::kAllKeys) return kNever;
    const long long query = C::kCausal ? first_key + key - first_query : 0;
    return query < 0 ? 0 : query > kNever ? kNever : static_cast<int>(query);
  }

  /// Masks queries of the tile that starts at `query`, for keys that they must not attend to.
  __device__ __forceinline__ void hide(int query, Scores<C>& scores) const {
    if (!kHides || query >= most) return;
    const int hidden[2] = {from[0] - query - warp_column(), from[1] - query - warp_column()};
#pragma unroll
    for (int n = 0; n < C::kTile / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (n * 8 + i % 2 < hidden[i / 2]) scores[n][i] = Max::identity<float>();
      }
    }
  }
};

/// Adds the contribution of one tile of queries to the gradients of a warp's keys and values.
template <class C, class Keys, class Values>
__device__ __forceinline__ void add_queries(const Keys& keys, const Values& values,
                                            const SeenFrom<C>& seen, int query,
                                            const NarrowTile<C>& queries,
                                            const NarrowTile<C>& grads,
                                            const TileNumbers<C>& numbers, Sums<C>& key_sums,
                                            Sums<C>& value_sums) {
  Scores<C> scores, back;
  Weights<C> weights;
  score_rows<C>(keys, queries, scores);
  seen.hide(query, scores);
#pragma unroll
  for (int n = 0; n < C::kTile / 8; ++n) {
    const auto logarithm = device::load<2>(&numbers.logarithm[n * 8 + warp_column()]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[n][i] =
          exp2_fast(math::fma(scores[n][i], RowSoftmax<C>::unit(), logarithm.x[i % 2] * -kLog2E));
    }
  }
  round_weights<C>(scores, weights);
  add_rows<C>(weights, grads, value_sums);
  score_rows<C>(values, grads, back);
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
__device__ __forceinline__ void tensor_attention_grad_keys(long long block, long long first_query,
                                                           long long first_key, const K& k,
                                                           const V& v, long long sharers,
                                                           const Of& of, const DK& dk,
                                                           const DV& dv) {
  __shared__ NarrowTile<C> queries[2], grads[2];
  __shared__ TileNumbers<C> numbers[2];
  const int first = first_of_warp<C>(block);
  const SeenFrom<C> seen(first, first_query, first_key);
  const int from = SeenFrom<C>::of(block * kOwn<C>, first_query, first_key) / C::kTile * C::kTile;
  Sums<C> key_sums = {}, value_sums = {};
  const auto walk = [&](const auto& keys, const auto& values) {
    for (long long s = 0; s < sharers; ++s) {
      const auto theirs = of(s);
      walk_tiles<C::kTile>(
          from, C::kLength,
          [&](int query, int stage) {
            fetch<C>(theirs.q, query, C::kLength, queries[stage]);
            fetch<C>(theirs.g, query, C::kLength, grads[stage]);
            numbers[stage].fetch(theirs.log_sum, theirs.dot, query);
          },
          [&](int query, int stage) {
            if (first >= C::kMemory || query + C::kTile <= seen.least) return;
            add_queries<C>(keys, values, seen, query, queries[stage], grads[stage], numbers[stage],
                           key_sums, value_sums);
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
