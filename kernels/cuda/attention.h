// Attention and its gradient without storing all scores (Dao et al. 2022), for generated kernels.
//
// A block of 256 threads owns kBlock rows: queries, or keys for the gradients of keys and values.
// It walks the rows of the other side kBlock at a time, in order. The scores of a block of rows
// with a block of rows are in shared memory. Each of the 256 / kBlock threads of a row keeps every
// (256 / kBlock)-th column of that row's sums in registers. Softmax is kept as the maximum score
// and the sum of exponentials so far. Every sum has one order and one writer.
//
// Causal order, a window, segments and padding leave each row an interval of the other side. A
// block walks from the first to the last row that one of its own sees.
//
// Biases by distance have gradients: the sums of a block's scores along diagonals, which it adds to
// its own entries in the workspace (on tensor cores a warp to the warp's). A last kernel sums all.
//
// The gradient computes the scores twice: once by queries, which also leaves two numbers per row in
// the workspace (the log of the sum of exponentials, and the dot product of the result with its
// gradient), and once by keys, which reads them.
#pragma once

#include "kernels/cuda/segment_spans.h"
#include "program/attention_mask.h"

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
/// kLength and kMemory (queries and keys on this rank), kCausal, kWindow and kAllKeys as in
/// AttentionMask, kSegments, scale(); with kCapped also soft_cap(), and squeeze(), which is scale()
/// / soft_cap(); kSloped: logits lose a slope times the distance of query and key. kEntries: biases
/// by distance, kEntryStride elements apart; 0: none. kDropped: weights are dropped; then
/// kQueryBits and kKeyBits, what a query and a key add to the number of a random bit, kLimit, which
/// a bit that stays is below, and kept(), the factor of what stays.
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

/// What positions mean for a logit and its weight, of one head.
template <class C>
struct AtPositions {
  using W = typename C::Wide;
  W slope;
  const W* entries;
  unsigned long long seed, stream;
  long long first_bit;

  /// The entry of a key that is so far behind its query.
  static __device__ __forceinline__ int entry(long long behind) {
    constexpr long long kMost = C::kEntries / 2;
    return static_cast<int>((behind < -kMost ? -kMost : behind > kMost ? kMost : behind) + kMost);
  }
  __device__ __forceinline__ W bias(long long behind) const {
    W x = W(0);
    if constexpr (C::kSloped) x = -slope * static_cast<W>(behind < 0 ? -behind : behind);
    if constexpr (C::kEntries > 0) x += entries[entry(behind) * C::kEntryStride];
    return x;
  }
  /// The factor of a weight.
  __device__ __forceinline__ W keeps(long long query, long long key) const {
    if constexpr (!C::kDropped) {
      return W(1);
    } else {
      const unsigned long long bit =
          static_cast<unsigned long long>(first_bit + query * C::kQueryBits + key * C::kKeyBits);
      const PhiloxWords words = philox4x32(bit >> 2, stream, seed);
      const int word = static_cast<int>(bit & 3);
      const uint32_t bits = word == 0   ? words.w[0]
                            : word == 1 ? words.w[1]
                            : word == 2 ? words.w[2]
                                        : words.w[3];
      return bits >> 9 < C::kLimit ? C::kept() : W(0);
    }
  }
};

enum class Side { queries, keys };

/// What the rows that a kernel's blocks own, queries or keys, see of the other side.
template <class C, Side kSide>
struct Sees {
  static constexpr bool kOfKeys = kSide == Side::keys, kByPlace = C::kCausal || C::kAllKeys != 0,
                        kBoth = C::kWindow != 0 || C::kSegments, kHides = kByPlace || kBoth;
  /// Whether there are rows in front of, and behind, those that are seen.
  static constexpr bool kBegins = kBoth || (kOfKeys && kByPlace),
                        kEnds = kBoth || (!kOfKeys && kByPlace);
  static constexpr int kOwn = kOfKeys ? C::kMemory : C::kLength,
                       kOther = kOfKeys ? C::kLength : C::kMemory;

  long long first_query, first_key;  ///< positions in the whole sequence
  const Span* spans;                 ///< of the rows, by segments; null without kSegments
  AtPositions<C> own;                ///< of the rows, if they are queries

  /// Of a query and a key of this rank.
  __device__ __forceinline__ typename C::Wide bias(const AtPositions<C>& of, long long query,
                                                   long long key) const {
    return of.bias(first_query + query - first_key - key);
  }
  __device__ __forceinline__ typename C::Wide keeps(const AtPositions<C>& of, long long query,
                                                    long long key) const {
    return of.keeps(first_query + query, first_key + key);
  }

  /// What a row sees; nothing: {kOther, 0}.
  __device__ __forceinline__ Span of(long long row) const {
    if constexpr (!kHides) {
      return {0, kOther};
    } else {
      if (row >= kOwn) return {kOther, 0};
      constexpr AttentionMask mask = {C::kLength, C::kMemory, C::kCausal, C::kWindow, C::kAllKeys};
      PositionRange seen = kOfKeys ? queries_seeing(mask, row, first_query, first_key)
                                   : keys_seen(mask, row, first_query, first_key);
      if constexpr (C::kSegments) seen = intersection(seen, {spans[row].begin, spans[row].end});
      if (seen.begin >= seen.end) return {kOther, 0};
      return {kBegins ? static_cast<int>(seen.begin) : 0,
              kEnds ? static_cast<int>(seen.end) : kOther};
    }
  }
};

/// A logit, and its slope by the scaled score.
template <class C>
struct Logit {
  typename C::Wide x, slope;
  __device__ __forceinline__ explicit Logit(typename C::Wide score) {
    using W = typename C::Wide;
    if constexpr (C::kCapped) {
      const W t = formula::Tanh::apply(score * C::squeeze());
      x = t * C::soft_cap();
      slope = W(1) - t * t;
    } else {
      x = score * C::scale();
      slope = W(1);
    }
  }
};

/// The softmax of a block's rows so far.
template <class C>
struct Softmax {
  using W = typename C::Wide;
  W greatest = Max::identity<W>(), total = W(0);

  /// Turns a row's scores with keys from `key` on into weights relative to the maximum so far.
  /// Returns the factor for earlier sums.
  __device__ __forceinline__ W add(AttentionScores<C>& scores, int key, const Span& seen,
                                   const Sees<C, Side::queries>& sees, long long row) {
    using R = RowSums<C>;
    W top = Max::identity<W>();
    for (int c = R::lane(); c < C::kBlock; c += R::kThreads) {
      W& score = scores.x[R::row()][c];
      score = Logit<C>(score).x + sees.bias(sees.own, row, key + c);
      if (key + c >= seen.begin && key + c < seen.end) top = Max::apply(top, score);
    }
    top = Max::apply(greatest, R::template over_row<Max>(top));
    const bool none = top == Max::identity<W>();
    W sum = W(0);
    for (int c = R::lane(); c < C::kBlock; c += R::kThreads) {
      W& score = scores.x[R::row()][c];
      const bool is_seen = key + c >= seen.begin && key + c < seen.end;
      score = is_seen && !none ? formula::Exp::apply(score - top) : W(0);
      sum += score;
      score *= sees.keeps(sees.own, row, key + c);
    }
    const W shrink = none ? W(1) : formula::Exp::apply(greatest - top);
    total = total * shrink + R::template over_row<Sum>(sum);
    greatest = top;
    return shrink;
  }
};

/// The rows that one of a block's rows sees, given what the thread's row does. Every thread must
/// call it.
template <class C, Side kSide>
__device__ __forceinline__ Span seen_by_block(const Sees<C, kSide>&, const Span& own) {
  if constexpr (!Sees<C, kSide>::kHides) {
    return own;
  } else {
    __shared__ int shared[kAttentionThreads / 32];
    const int begin = reduce_threads<Min, kAttentionThreads>(own.begin, shared);
    return {begin, reduce_threads<Max, kAttentionThreads>(own.end, shared)};
  }
}

/// Attends one block of queries to the keys that they see; fills `sums` and `softmax`.
template <class C, class K, class V>
__device__ __forceinline__ void attend(long long first, const Sees<C, Side::queries>& sees,
                                       const K& k, const V& v, const AttentionTile<C>& queries,
                                       AttentionTile<C>& other, AttentionScores<C>& scores,
                                       RowSums<C>& sums, Softmax<C>& softmax) {
  const Span seen = sees.of(first + RowSums<C>::row());
  const Span all = seen_by_block(sees, seen);
  for (int j = all.begin; j < all.end; j += C::kBlock) {
    __syncthreads();
    load_tile<C>(k, j, C::kMemory, other);
    __syncthreads();
    multiply_rows<C>(queries, other, scores);
    __syncthreads();
    load_tile<C>(v, j, C::kMemory, other);
    sums.scale(softmax.add(scores, j, seen, sees, first + RowSums<C>::row()));
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
__device__ __forceinline__ void attention(long long block, const Sees<C, Side::queries>& sees,
                                          const Q& q, const K& k, const V& v, const O& out,
                                          const L& log_sum) {
  __shared__ AttentionTile<C> queries, other;
  __shared__ AttentionScores<C> scores;
  const long long first = block * C::kBlock;
  load_tile<C>(q, first, C::kLength, queries);
  RowSums<C> sums;
  Softmax<C> softmax;
  attend<C>(first, sees, k, v, queries, other, scores, sums, softmax);
  sums.store(out, first, C::kLength);
  const long long row = first + RowSums<C>::row();
  if (RowSums<C>::lane() == 0 && row < C::kLength)
    log_sum.at(row) = log_of(softmax.greatest, softmax.total);
}

/// Adds the sums of the logits' gradients along diagonals to the block's entries. `behind`: how far
/// key 0 of them is behind query 0.
template <class C>
__device__ __forceinline__ void add_diagonals(const AttentionScores<C>& gradients, long long behind,
                                              typename C::Wide* entries) {
  using W = typename C::Wide;
  using At = AtPositions<C>;
  constexpr int kMost = C::kBlock - 1;
  __shared__ W diagonals[2 * kMost + 1];
  for (int d = static_cast<int>(threadIdx.x); d <= 2 * kMost; d += kAttentionThreads) {
    const int further = d - kMost;  // query minus key
    W sum = W(0);
    for (int row = further > 0 ? further : 0; row <= kMost && row - further <= kMost; ++row)
      sum += gradients.x[row][row - further];
    diagonals[d] = sum;
  }
  __syncthreads();
  const int end = At::entry(behind + kMost) + 1;
  for (int e = At::entry(behind - kMost) + static_cast<int>(threadIdx.x); e < end;
       e += kAttentionThreads) {
    W sum = W(0);
    for (int d = 0; d <= 2 * kMost; ++d) {
      if (At::entry(behind + d - kMost) == e) sum += diagonals[d];
    }
    entries[e] += sum;
  }
}

/// The gradient of one block of queries. `dot`: the dot products of the result with its gradient,
/// by row. `entries`: with biases by distance, the block's own sums of their gradients.
template <class C, class Q, class K, class V, class G, class D, class L>
__device__ __forceinline__ void attention_grad_queries(long long block,
                                                       const Sees<C, Side::queries>& sees,
                                                       const Q& q, const K& k, const V& v,
                                                       const G& g, const D& dq, const L& log_sum,
                                                       const L& dot, typename C::Wide* entries) {
  using W = typename C::Wide;
  using R = RowSums<C>;
  __shared__ AttentionTile<C> queries, grads, other;
  __shared__ AttentionScores<C> scores, back;
  const long long first = block * C::kBlock, row = first + R::row();
  for (int e = static_cast<int>(threadIdx.x); e < C::kEntries; e += kAttentionThreads)
    entries[e] = W(0);
  load_tile<C>(q, first, C::kLength, queries);
  load_tile<C>(g, first, C::kLength, grads);
  R sums;
  const W logarithm = row < C::kLength ? log_sum.at(row) : W(0);
  const W inner = row < C::kLength ? dot.at(row) : W(0);
  const Span seen = sees.of(row);
  const Span all = seen_by_block(sees, seen);
  for (int j = all.begin; j < all.end; j += C::kBlock) {
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
      const Logit<C> logit(score);
      const bool is_seen = j + c >= seen.begin && j + c < seen.end && row < C::kLength;
      const W x = logit.x + sees.bias(sees.own, row, j + c);
      const W p = is_seen ? formula::Exp::apply(x - logarithm) : W(0);
      W& gradient = back.x[R::row()][c];
      gradient = p * (gradient * sees.keeps(sees.own, row, j + c) - inner);
      score = gradient * logit.slope * C::scale();
    }
    __syncthreads();
    sums.add(scores, other);
    if constexpr (C::kEntries > 0)
      add_diagonals<C>(back, sees.first_query + first - sees.first_key - j, entries);
  }
  sums.store(dq, first, C::kLength);
}

/// The gradients of biases by distance of one head, the sums over its blocks. `e`: the number of
/// the thread's entry.
template <class C, class T>
__device__ __forceinline__ void sum_entries(const T* of_blocks, int blocks, int e, T* to) {
  T sum = 0;
  for (int b = 0; b < blocks; ++b) sum += of_blocks[b * C::kEntries + e];
  *to = sum;
}

/// The queries of one head, with their numbers per row. Several heads may share keys.
template <class C, class Q, class G, class L, class P>
struct Queries {
  Q q;
  G g;
  L log_sum;
  P dot;
  AtPositions<C> own;
};

/// The gradients of one block of keys and values. `of(s)`: the Queries of sharer s.
template <class C, class K, class V, class Of, class DK, class DV>
__device__ __forceinline__ void attention_grad_keys(long long block,
                                                    const Sees<C, Side::keys>& sees, const K& k,
                                                    const V& v, long long sharers, const Of& of,
                                                    const DK& dk, const DV& dv) {
  using W = typename C::Wide;
  using R = RowSums<C>;
  __shared__ AttentionTile<C> keys, values, other;
  __shared__ AttentionScores<C> scores, back;
  const long long first = block * C::kBlock;
  load_tile<C>(k, first, C::kMemory, keys);
  load_tile<C>(v, first, C::kMemory, values);
  const Span seen = sees.of(first + R::row());
  const Span all = seen_by_block(sees, seen);
  R key_sums, value_sums;
  for (long long s = 0; s < sharers; ++s) {
    const auto queries = of(s);
    for (int i = all.begin; i < all.end; i += C::kBlock) {
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
        const int query = i + c;
        const bool is_seen = query >= seen.begin && query < seen.end;
        W &score = scores.x[R::row()][c], &gradient = back.x[R::row()][c];
        const Logit<C> logit(score);
        const W x = logit.x + sees.bias(queries.own, query, first + R::row());
        const W p = is_seen ? formula::Exp::apply(x - queries.log_sum.at(query)) : W(0);
        const W keeps = sees.keeps(queries.own, query, first + R::row());
        score = p * keeps;
        gradient = is_seen
                       ? p * (gradient * keeps - queries.dot.at(query)) * logit.slope * C::scale()
                       : W(0);
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
