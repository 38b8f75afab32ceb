// Attention and its gradient without storing all scores (Dao et al. 2022), for generated kernels.
//
// A block of 256 threads owns kBlock rows: queries, or keys for the gradients of keys and values.
// It walks the rows of the other side kBlock at a time, in order. The scores of a block of rows
// with a block of rows are in shared memory. Each of the 256 / kBlock threads of a row keeps every
// (256 / kBlock)-th column of that row's sums in registers. Softmax is kept as the maximum score
// and the sum of exponentials so far. Every sum has one order and one writer.
//
// The gradient computes the scores twice: once by queries, which also leaves two numbers per row in
// the workspace (the log of the sum of exponentials, and the dot product of the result with its
// gradient), and once by keys, which reads them.
#pragma once

#include "kernels/cuda/device.h"

namespace tessera::device {

constexpr int kAttentionThreads = 256;

/// A matrix of positions by columns in global memory. Strides are elements.
template <class T, long long kRow, long long kColumn>
struct Positions {
  T* data;
  static constexpr bool kDenseRows = kColumn == 1;
  __device__ __forceinline__ T& at(long long row, int column) const {
    return data[row * kRow + column * kColumn];
  }
};

/// Shared memory. C, a configuration, has Wide (the type of sums), kBlock, kWidth (columns),
/// kLength and kMemory (queries and keys on this rank), kAllKeys (global number of keys; 0: kMemory
/// is all), kCausal, scale().
template <class C>
struct AttentionTile {
  typename C::Wide x[C::kBlock][C::kWidth + 1];
};
template <class C>
struct AttentionScores {
  typename C::Wide x[C::kBlock][C::kBlock + 1];
};

/// Loads a block of rows, from `first` on; zeros from row `rows` on.
template <class C, class M>
__device__ __forceinline__ void load_tile(const M& from, long long first, long long rows,
                                          AttentionTile<C>& to) {
  for (int e = static_cast<int>(threadIdx.x); e < C::kBlock * C::kWidth; e += kAttentionThreads) {
    const int row = M::kDenseRows ? e / C::kWidth : e % C::kBlock;
    const int column = M::kDenseRows ? e % C::kWidth : e / C::kBlock;
    to.x[row][column] = first + row < rows
                            ? static_cast<typename C::Wide>(widen(from.at(first + row, column)))
                            : typename C::Wide(0);
  }
}

/// to[r][c] = sum_d a[r][d] b[c][d].
template <class C>
__device__ __forceinline__ void multiply_rows(const AttentionTile<C>& a, const AttentionTile<C>& b,
                                              AttentionScores<C>& to) {
  using W = typename C::Wide;
  constexpr int kEach = C::kBlock * C::kBlock / kAttentionThreads;
  constexpr int kRows = kEach > 0 ? kEach : 1, kApart = kAttentionThreads / C::kBlock;
  const int row = static_cast<int>(threadIdx.x) / C::kBlock;
  const int column = static_cast<int>(threadIdx.x) % C::kBlock;
  if (row >= C::kBlock) return;
  W sums[kRows] = {};
#pragma unroll 8
  for (int d = 0; d < C::kWidth; ++d) {
    const W y = b.x[column][d];
#pragma unroll
    for (int i = 0; i < kRows; ++i) sums[i] = math::fma(a.x[row + i * kApart][d], y, sums[i]);
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) to.x[row + i * kApart][column] = sums[i];
}

/// One thread's columns of the sums of a row.
template <class C>
struct RowSums {
  using W = typename C::Wide;
  static constexpr int kThreads = kAttentionThreads / C::kBlock;  ///< per row
  static constexpr int kColumns = (C::kWidth + kThreads - 1) / kThreads;
  W x[kColumns] = {};

  static __device__ __forceinline__ int row() { return static_cast<int>(threadIdx.x) / kThreads; }
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % kThreads; }
  static __device__ __forceinline__ int column(int i) { return lane() + i * kThreads; }
  static __device__ __forceinline__ bool has(int i) {
    return C::kWidth % kThreads == 0 || column(i) < C::kWidth;
  }

  /// Adds sum_c weights[row][c] values[c].
  __device__ __forceinline__ void add(const AttentionScores<C>& weights,
                                      const AttentionTile<C>& values) {
#pragma unroll 4
    for (int c = 0; c < C::kBlock; ++c) {
      const W w = weights.x[row()][c];
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (has(i)) x[i] = math::fma(w, values.x[c][column(i)], x[i]);
      }
    }
  }
  __device__ __forceinline__ void scale(W by) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) x[i] *= by;
  }
  template <class M>
  __device__ __forceinline__ void store(const M& to, long long first, long long rows) const {
    if (first + row() >= rows) return;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if (has(i)) narrow(x[i], to.at(first + row(), column(i)));
    }
  }
  template <class F>
  static __device__ __forceinline__ W over_row(W value) {
    return reduce_threads<F, kThreads>(value, static_cast<W*>(nullptr));
  }
};

/// The number of keys that query `i` may attend to.
template <class C>
__device__ __forceinline__ long long keys_seen(long long i, long long first_query,
                                               long long first_key) {
  long long n = C::kAllKeys == 0 ? C::kMemory : C::kAllKeys - first_key;
  if (C::kCausal && first_query + i + 1 - first_key < n) n = first_query + i + 1 - first_key;
  return n < 0 ? 0 : n > C::kMemory ? C::kMemory : n;
}

/// The softmax of a block's rows so far.
template <class C>
struct Softmax {
  using W = typename C::Wide;
  W greatest = Max::identity<W>(), total = W(0);

  /// Turns a row's scores into weights relative to the maximum so far. Returns the factor for
  /// earlier sums.
  __device__ __forceinline__ W add(AttentionScores<C>& scores, long long visible) {
    using R = RowSums<C>;
    W top = Max::identity<W>();
    for (int c = R::lane(); c < C::kBlock; c += R::kThreads) {
      if (c < visible) top = Max::apply(top, scores.x[R::row()][c] * C::scale());
    }
    top = Max::apply(greatest, R::template over_row<Max>(top));
    const bool none = top == Max::identity<W>();
    W sum = W(0);
    for (int c = R::lane(); c < C::kBlock; c += R::kThreads) {
      W& score = scores.x[R::row()][c];
      score = c < visible && !none ? formula::Exp::apply(score * C::scale() - top) : W(0);
      sum += score;
    }
    const W shrink = none ? W(1) : formula::Exp::apply(greatest - top);
    total = total * shrink + R::template over_row<Sum>(sum);
    greatest = top;
    return shrink;
  }
};

/// Attends one block of queries to all keys; fills `sums` and `softmax`.
template <class C, class K, class V>
__device__ __forceinline__ void attend(long long first, long long first_query, long long first_key,
                                       const K& k, const V& v, const AttentionTile<C>& queries,
                                       AttentionTile<C>& other, AttentionScores<C>& scores,
                                       RowSums<C>& sums, Softmax<C>& softmax) {
  const long long seen = keys_seen<C>(first + RowSums<C>::row(), first_query, first_key);
  const long long last = keys_seen<C>(first + C::kBlock - 1, first_query, first_key);
  for (long long j = 0; j < last; j += C::kBlock) {
    __syncthreads();
    load_tile<C>(k, j, C::kMemory, other);
    __syncthreads();
    multiply_rows<C>(queries, other, scores);
    __syncthreads();
    load_tile<C>(v, j, C::kMemory, other);
    const long long here = C::kMemory < seen ? C::kMemory : seen;
    sums.scale(softmax.add(scores, here - j));
    __syncthreads();
    sums.add(scores, other);
  }
  const typename C::Wide total = softmax.total;
  sums.scale(total > 0 || total != total ? 1 / total : typename C::Wide(0));
}

/// One number per query, kRow elements apart.
template <class T, long long kRow>
struct Numbers {
  T* data;
  __device__ __forceinline__ T& at(long long row) const { return data[row * kRow]; }
};

/// The log of the sum over the keys; without any key, the lowest value that attention_part uses.
template <class W>
__device__ __forceinline__ W log_of(W greatest, W total) {
  return total == 0 ? W(-1e30) : greatest + formula::Log::apply(total);
}

/// The result of one block of queries, and log_sum.
template <class C, class Q, class K, class V, class O, class L>
__device__ __forceinline__ void attention(long long block, long long first_query,
                                          long long first_key, const Q& q, const K& k, const V& v,
                                          const O& out, const L& log_sum) {
  __shared__ AttentionTile<C> queries, other;
  __shared__ AttentionScores<C> scores;
  const long long first = block * C::kBlock;
  load_tile<C>(q, first, C::kLength, queries);
  RowSums<C> sums;
  Softmax<C> softmax;
  attend<C>(first, first_query, first_key, k, v, queries, other, scores, sums, softmax);
  sums.store(out, first, C::kLength);
  const long long row = first + RowSums<C>::row();
  if (RowSums<C>::lane() == 0 && row < C::kLength)
    log_sum.at(row) = log_of(softmax.greatest, softmax.total);
}

/// The gradient of one block of queries. `dot`: the dot products of the result with its gradient,
/// by row.
template <class C, class Q, class K, class V, class G, class D, class L>
__device__ __forceinline__ void attention_grad_queries(long long block, long long first_query,
                                                       long long first_key, const Q& q, const K& k,
                                                       const V& v, const G& g, const D& dq,
                                                       const L& log_sum, const L& dot) {
  using W = typename C::Wide;
  using R = RowSums<C>;
  __shared__ AttentionTile<C> queries, grads, other;
  __shared__ AttentionScores<C> scores, back;
  const long long first = block * C::kBlock, row = first + R::row();
  load_tile<C>(q, first, C::kLength, queries);
  load_tile<C>(g, first, C::kLength, grads);
  R sums;
  const W logarithm = row < C::kLength ? log_sum.at(row) : W(0);
  const W inner = row < C::kLength ? dot.at(row) : W(0);
  const long long seen = keys_seen<C>(row, first_query, first_key);
  const long long last = keys_seen<C>(first + C::kBlock - 1, first_query, first_key);
  for (long long j = 0; j < last; j += C::kBlock) {
    __syncthreads();
    load_tile<C>(v, j, C::kMemory, other);
    __syncthreads();
    multiply_rows<C>(grads, other, back);
    __syncthreads();
    load_tile<C>(k, j, C::kMemory, other);
    __syncthreads();
    multiply_rows<C>(queries, other, scores);
    __syncthreads();
    for (int c = R::lane(); c < C::kBlock; c += R::kThreads) {
      W& score = scores.x[R::row()][c];
      const W p = j + c < seen ? formula::Exp::apply(score * C::scale() - logarithm) : W(0);
      score = p * (back.x[R::row()][c] - inner) * C::scale();
    }
    __syncthreads();
    sums.add(scores, other);
  }
  sums.store(dq, first, C::kLength);
}

/// The queries of one head, with their numbers per row. Several heads may share keys.
template <class Q, class G, class L, class P>
struct Queries {
  Q q;
  G g;
  L log_sum;
  P dot;
};

/// The gradients of one block of keys and values. `of(s)`: the Queries of sharer s.
template <class C, class K, class V, class Of, class DK, class DV>
__device__ __forceinline__ void attention_grad_keys(long long block, long long first_query,
                                                    long long first_key, const K& k, const V& v,
                                                    long long sharers, const Of& of, const DK& dk,
                                                    const DV& dv) {
  using W = typename C::Wide;
  using R = RowSums<C>;
  __shared__ AttentionTile<C> keys, values, other;
  __shared__ AttentionScores<C> scores, back;
  const long long first = block * C::kBlock;
  load_tile<C>(k, first, C::kMemory, keys);
  load_tile<C>(v, first, C::kMemory, values);
  long long from = C::kCausal ? first + first_key - first_query : 0;
  from = from < 0 ? 0 : from / C::kBlock * C::kBlock;
  R key_sums, value_sums;
  for (long long s = 0; s < sharers; ++s) {
    const auto queries = of(s);
    for (long long i = from; i < C::kLength; i += C::kBlock) {
      __syncthreads();
      load_tile<C>(queries.g, i, C::kLength, other);
      __syncthreads();
      multiply_rows<C>(values, other, back);
      __syncthreads();
      load_tile<C>(queries.q, i, C::kLength, other);
      __syncthreads();
      multiply_rows<C>(keys, other, scores);
      __syncthreads();
      for (int c = R::lane(); c < C::kBlock; c += R::kThreads) {
        const long long query = i + c;
        const bool sees =
            query < C::kLength && first + R::row() < keys_seen<C>(query, first_query, first_key);
        W &score = scores.x[R::row()][c], &gradient = back.x[R::row()][c];
        const W p =
            sees ? formula::Exp::apply(score * C::scale() - queries.log_sum.at(query)) : W(0);
        score = p;
        gradient = sees ? p * (gradient - queries.dot.at(query)) * C::scale() : W(0);
      }
      __syncthreads();
      key_sums.add(back, other);
      __syncthreads();
      load_tile<C>(queries.g, i, C::kLength, other);
      __syncthreads();
      value_sums.add(scores, other);
    }
  }
  key_sums.store(dk, first, C::kMemory);
  value_sums.store(dv, first, C::kMemory);
}

}  // namespace tessera::device
