// Attention and its gradient on tensor cores, for bfloat16 and float16 (Dao 2023, algorithms 1, 2).
//
// A block is a few warps; a warp owns 16 rows: queries, or keys for the gradients of keys and
// values. The block walks the rows of the other side C::kTile at a time, in order, double-buffered
// in shared memory so that the next tile loads meanwhile. A warp's own rows stay in registers, and
// so do its scores with a tile: the result registers of one matmul have the layout of an operand of
// the next one (kernels/cuda/tensor_core.h), for which they are rounded to the operands' type.
// Sums, scores and softmax are float32. Every sum has one order and one writer.
//
// A thread has pairs of neighbouring columns of two rows, l / 4 and l / 4 + 8, where l is its lane.
// So what it keeps per row is two numbers.
//
// Exponentials are powers of two. Logarithms in this file are to base 2, in the workspace too.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/tensor_core.h"

namespace tessera::device {

constexpr float kLog2E = 1.44269504f;

/// Positions whose kVector neighbouring columns are one aligned access.
template <class T, long long kRow, long long kColumn, int kVector_>
struct Rows : Positions<T, kRow, kColumn> {
  static constexpr int kVector = kVector_;
  static constexpr long long kRowStride = kRow;
};

/// A tile of rows of the other side in shared memory. C is a configuration as in attention.h, plus
/// Type (of the operands), kWarps (per block) and kTile (rows, a multiple of 16). Columns are
/// padded with zeros to a multiple of 16. A row takes an odd multiple of 16 bytes, so that 8
/// neighbouring rows are in different banks.
template <class C>
constexpr int kDepth = (C::kWidth + 15) / 16 * 16;
template <class C, int kRows = C::kTile>
struct alignas(16) NarrowTile {
  typename C::Type x[kRows][kDepth<C> + 8];
};
template <class C>
constexpr int kThreads = C::kWarps * 32;
template <class C>
constexpr int kOwn = C::kWarps * 16;  ///< rows per block
template <class C>
constexpr int kTileRowBytes = (kDepth<C> + 8) * 2;

/// The scores of a warp's rows with a tile, and the sums of its rows by column.
template <class C>
using Scores = float[C::kTile / 8][4];
template <class C>
using Sums = float[kDepth<C> / 8][4];
/// Scores as a matmul operand.
template <class C>
using Weights = uint32_t[C::kTile / 16][4];

__device__ __forceinline__ int warp_lane() { return static_cast<int>(threadIdx.x) % 32; }
__device__ __forceinline__ int warp_row() { return warp_lane() / 4; }
__device__ __forceinline__ int warp_column() { return warp_lane() % 4 * 2; }
/// The first row of the warp.
template <class C>
__device__ __forceinline__ int first_of_warp(int block) {
  return block * kOwn<C> + static_cast<int>(threadIdx.x) / 32 * 16;
}

/// A warp's own rows, in registers.
template <class C>
struct OwnRows {
  static constexpr int kUnroll = kDepth<C> / 16;
  uint32_t x[kDepth<C> / 16][4];

  template <class M>
  __device__ __forceinline__ void load(const M& from, int first, int rows) {
#pragma unroll
    for (int step = 0; step < kDepth<C> / 16; ++step) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = first + warp_row() + r % 2 * 8;
        const int column = step * 16 + warp_column() + r / 2 * 8;
        x[step][r] = row < rows && column < C::kWidth ? pair(from, row, column) : 0;
      }
    }
  }
  __device__ __forceinline__ void get(int step, uint32_t (&to)[4]) const {
#pragma unroll
    for (int r = 0; r < 4; ++r) to[r] = x[step][r];
  }

 private:
  template <class M>
  static __device__ __forceinline__ uint32_t pair(const M& from, int row, int column) {
    if constexpr (M::kVector > 1) {
      const auto both = device::load<2>(&from.at(row, column));
      return both.x[0].bits | static_cast<uint32_t>(both.x[1].bits) << 16;
    } else {
      const uint32_t second = column + 1 < C::kWidth ? from.at(row, column + 1).bits : 0;
      return from.at(row, column).bits | second << 16;
    }
  }
};

/// A warp's own rows in shared memory: for wide rows there are not enough registers.
template <class C>
struct SharedRows {
  static constexpr int kUnroll = 2;  ///< with more, the compiler would hold them in registers
  SharedAddress at;
  __device__ __forceinline__ explicit SharedRows(const NarrowTile<C, kOwn<C>>& tile)
      : at(shared_address(&tile.x[static_cast<int>(threadIdx.x) / 32 * 16 + warp_lane() % 16]
                                 [warp_lane() / 16 * 8])) {}
  __device__ __forceinline__ void get(int step, uint32_t (&to)[4]) const {
    load_blocks(at + step * 32, to);
  }
};

/// Starts to load rows from `first` on into a tile; zeros from row `rows` on.
template <class C, int kRows, class M>
__device__ __forceinline__ void fetch(const M& from, int first, int rows,
                                      NarrowTile<C, kRows>& to) {
  const int left = rows - first, thread = static_cast<int>(threadIdx.x);
  if constexpr (M::kVector > 1) {
    constexpr int kChunks = kDepth<C> / M::kVector, kAll = kRows * kChunks;
    const auto* data = &from.at(first, 0);
#pragma unroll
    for (int base = 0; base < kAll; base += kThreads<C>) {
      const int e = base + thread;
      if (kAll % kThreads<C> != 0 && e >= kAll) break;
      // The first form separates what depends on the thread from what does not.
      constexpr bool kEven = kThreads<C> % kChunks == 0;
      const int row = kEven ? thread / kChunks + base / kChunks : e / kChunks;
      const int column = (kEven ? thread : e) % kChunks * M::kVector;
      copy_async<2 * M::kVector>(&to.x[row][column], data + (row * M::kRowStride + column),
                                 row < left && column < C::kWidth);
    }
  } else {
    for (int e = thread; e < kRows * kDepth<C>; e += kThreads<C>) {
      const int row = M::kDenseRows ? e / kDepth<C> : e % kRows;
      const int column = M::kDenseRows ? e % kDepth<C> : e / kRows;
      to.x[row][column] =
          row < left && column < C::kWidth ? from.at(first + row, column) : typename C::Type{0};
    }
  }
}

/// Calls use(first, stage) for the tiles that begin at rows from, from + kTile, ... below `end`.
/// fetch(first, stage) starts to load a tile into one of two stages, one tile ahead. Every thread
/// must call it; between two walks they have to wait for each other.
template <int kTile, class Fetch, class Use>
__device__ __forceinline__ void walk_tiles(int from, int end, const Fetch& fetch, const Use& use) {
  if (from < end) fetch(from, 0);
  for (int first = from, stage = 0; first < end; first += kTile, stage ^= 1) {
    wait_copies();
    __syncthreads();
    if (first + kTile < end) fetch(first + kTile, stage ^ 1);
    __syncwarp();  // warp instructions need all lanes together
    use(first, stage);
  }
}

/// to[r][c] = sum_d own[r][d] tile[c][d].
template <class C, class Own>
__device__ __forceinline__ void score_rows(const Own& own, const NarrowTile<C>& tile,
                                           Scores<C>& to) {
#pragma unroll
  for (int n = 0; n < C::kTile / 8; ++n) to[n][0] = to[n][1] = to[n][2] = to[n][3] = 0.0f;
  const int lane = warp_lane();
  const SharedAddress at = shared_address(&tile.x[lane % 8 + lane / 16 * 8][lane / 8 % 2 * 8]);
#pragma unroll Own::kUnroll
  for (int step = 0; step < kDepth<C> / 16; ++step) {
    uint32_t a[4], b[4];
    own.get(step, a);
#pragma unroll
    for (int n = 0; n < C::kTile / 16; ++n) {
      load_blocks(at + n * 16 * kTileRowBytes<C> + step * 32, b);
      multiply<typename C::Type>(to[2 * n], a, b[0], b[1]);
      multiply<typename C::Type>(to[2 * n + 1], a, b[2], b[3]);
    }
  }
}

template <class C>
__device__ __forceinline__ void round_weights(const Scores<C>& scores, Weights<C>& to) {
  using T = typename C::Type;
#pragma unroll
  for (int k = 0; k < C::kTile / 16; ++k) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float(&pairs)[4] = scores[2 * k + r / 2];
      to[k][r] = packed<T>(pairs[r % 2 * 2], pairs[r % 2 * 2 + 1]);
    }
  }
}

/// sums[r][d] += sum_c weights[r][c] tile[c][d].
template <class C>
__device__ __forceinline__ void add_rows(const Weights<C>& weights, const NarrowTile<C>& tile,
                                         Sums<C>& sums) {
  const int lane = warp_lane();
  const SharedAddress at = shared_address(&tile.x[lane % 16][lane / 16 * 8]);
#pragma unroll
  for (int k = 0; k < C::kTile / 16; ++k) {
#pragma unroll
    for (int n = 0; n < kDepth<C> / 16; ++n) {
      uint32_t b[4];
      load_blocks_transposed(at + k * 16 * kTileRowBytes<C> + n * 32, b);
      multiply<typename C::Type>(sums[2 * n], weights[k], b[0], b[1]);
      multiply<typename C::Type>(sums[2 * n + 1], weights[k], b[2], b[3]);
    }
  }
}

/// Stores a warp's sums, each row multiplied by its factor.
template <class C, class M>
__device__ __forceinline__ void store_rows(const Sums<C>& sums, const float (&factor)[2],
                                           const M& to, int first, int rows) {
  using T = typename C::Type;
#pragma unroll
  for (int n = 0; n < kDepth<C> / 8; ++n) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first + warp_row() + r * 8;
      const int column = n * 8 + warp_column();
      if (row >= rows || column >= C::kWidth) continue;
      const auto both =
          bits_as<Vec<T, 2>>(packed<T>(sums[n][2 * r] * factor[r], sums[n][2 * r + 1] * factor[r]));
      if constexpr (M::kVector > 1) {
        device::store(&to.at(row, column), both);
      } else {
        to.at(row, column) = both.x[0];
        if (column + 1 < C::kWidth) to.at(row, column + 1) = both.x[1];
      }
    }
  }
}

/// Combines over the four threads of a row.
template <class F>
__device__ __forceinline__ float over_row(float x) {
  return reduce_threads<F, 4>(x, static_cast<float*>(nullptr));
}
/// One instruction, unlike Max. It ignores NaN; a NaN score still makes its row's sum NaN.
struct Greater {
  static __device__ __forceinline__ float apply(float a, float b) { return ::fmaxf(a, b); }
};

/// What the rows of a warp see of the other side.
template <class C, Side kSide>
struct WarpSees {
  using S = Sees<C, kSide>;
  /// The last tile may have rows behind the other side's last one.
  static constexpr bool kEnds = S::kEnds || S::kOther % C::kTile != 0;
  Span seen[2];  ///< by the thread's two rows
  Span some;     ///< by one of the rows at least
  Span all;      ///< by every row

  __device__ __forceinline__ WarpSees(int first, const S& sees)
      : seen{sees.of(first + warp_row()), sees.of(first + warp_row() + 8)},
        some(seen[0]),
        all(seen[0]) {
    if constexpr (S::kHides) {
      // Rows that are not there hide nothing.
      const bool there[2] = {first + warp_row() < S::kOwn, first + warp_row() + 8 < S::kOwn};
      const Span whole = {0, S::kOther},
                 own[2] = {there[0] ? seen[0] : whole, there[1] ? seen[1] : whole};
      some = {S::kBegins ? over_warp<Min>(least(seen[0].begin, seen[1].begin)) : 0,
              S::kEnds ? over_warp<Max>(most(seen[0].end, seen[1].end)) : S::kOther};
      all = {S::kBegins ? over_warp<Max>(most(own[0].begin, own[1].begin)) : 0,
             S::kEnds ? over_warp<Min>(least(own[0].end, own[1].end)) : S::kOther};
    }
  }

  /// By one of the rows of the block at least. Every thread must call it.
  __device__ __forceinline__ Span of_block() const {
    if constexpr (!S::kHides) {
      return some;
    } else {
      __shared__ Span warps[C::kWarps];
      if (warp_lane() == 0) warps[threadIdx.x / 32] = some;
      __syncthreads();
      Span block = warps[0];
#pragma unroll
      for (int w = 1; w < C::kWarps; ++w)
        block = {least(block.begin, warps[w].begin), most(block.end, warps[w].end)};
      return block;
    }
  }
  __device__ __forceinline__ bool sees_tile(int first) const {
    return first + C::kTile > some.begin && first < some.end;
  }

  /// Masks rows of the tile that starts at `first`, for rows of the warp that do not see them.
  __device__ __forceinline__ void hide(int first, Scores<C>& scores) const {
    if constexpr (S::kHides || kEnds) {
      if (first >= all.begin && first + C::kTile <= all.end) return;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int begin = seen[r].begin - first - warp_column(),
                  end = seen[r].end - first - warp_column();
#pragma unroll
        for (int n = 0; n < C::kTile / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int c = n * 8 + i;
            if ((S::kBegins && c < begin) || (kEnds && c >= end))
              scores[n][2 * r + i] = Max::identity<float>();
          }
        }
      }
    }
  }

 private:
  static __device__ __forceinline__ int least(int a, int b) { return a < b ? a : b; }
  static __device__ __forceinline__ int most(int a, int b) { return a > b ? a : b; }
  /// Over the rows of a warp.
  template <class F>
  static __device__ __forceinline__ int over_warp(int x) {
    return reduce_threads<F, 32>(x, static_cast<int*>(nullptr));
  }
};

/// With a soft cap, scores become tanh(scaled score / soft cap).
template <class C>
__device__ __forceinline__ void squash(Scores<C>& scores) {
  if constexpr (C::kCapped) {
#pragma unroll
    for (int n = 0; n < C::kTile / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] = formula::Tanh::apply(scores[n][i] * C::squeeze());
    }
  }
}
/// What a logit is of its score.
template <class C>
__device__ __forceinline__ float logit_unit() {
  if constexpr (C::kCapped) {
    return C::soft_cap();
  } else {
    return C::scale();
  }
}

/// Adds the biases of positions to the scores of the warp's rows, from `row` on, with a tile from
/// `other` on. They are in units of scores.
template <class C, Side kSide>
__device__ __forceinline__ void add_biases(const Sees<C, kSide>& sees, const AtPositions<C>& of,
                                           int row, int other, Scores<C>& scores) {
  if constexpr (C::kSloped || C::kEntries > 0) {
    static_assert(!C::kCapped, "the slope of a capped logit is not known from its sum");
    const float unit = 1.0f / logit_unit<C>();
#pragma unroll
    for (int n = 0; n < C::kTile / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int mine = row + warp_row() + i / 2 * 8,
                  theirs = other + n * 8 + warp_column() + i % 2;
        const bool is_query = kSide == Side::queries;
        scores[n][i] += unit * sees.bias(of, is_query ? mine : theirs, is_query ? theirs : mine);
      }
    }
  }
}
/// With dropout: which of those scores' weights stay, a bit for each.
template <class C, Side kSide>
__device__ __forceinline__ uint32_t kept_scores(const Sees<C, kSide>& sees,
                                                const AtPositions<C>& of, int row, int other) {
  uint32_t kept = ~0u;
  if constexpr (C::kDropped) {
    static_assert(C::kTile <= 64, "a thread has 32 scores");
    kept = 0;
#pragma unroll
    for (int n = 0; n < C::kTile / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int mine = row + warp_row() + i / 2 * 8,
                  theirs = other + n * 8 + warp_column() + i % 2;
        const bool is_query = kSide == Side::queries;
        const float factor = sees.keeps(of, is_query ? mine : theirs, is_query ? theirs : mine);
        kept |= (factor > 0.0f ? 1u : 0u) << (n * 4 + i);
      }
    }
  }
  return kept;
}
template <class C>
__device__ __forceinline__ void drop(uint32_t kept, Scores<C>& scores) {
  if constexpr (C::kDropped) {
#pragma unroll
    for (int n = 0; n < C::kTile / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] *= kept >> (n * 4 + i) & 1u ? C::kept() : 0.0f;
    }
  }
}

/// The softmax of a thread's rows so far: the maximum score of each row, and this thread's part of
/// the sum of exponentials.
template <class C>
struct RowSoftmax {
  float greatest[2] = {Max::identity<float>(), Max::identity<float>()};
  float total[2] = {0.0f, 0.0f};
  static __device__ __forceinline__ float unit() { return logit_unit<C>() * kLog2E; }

  /// Turns scores into weights relative to the maximum so far. Sets the factors for earlier sums.
  __device__ __forceinline__ void add(Scores<C>& scores, float (&shrink)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = greatest[r];
#pragma unroll
      for (int n = 0; n < C::kTile / 8; ++n)
        top = Greater::apply(top, Greater::apply(scores[n][2 * r], scores[n][2 * r + 1]));
      top = over_row<Greater>(top);
      const float base = top == Max::identity<float>() ? 0.0f : top * unit();
      shrink[r] = exp2_fast(math::fma(greatest[r], unit(), -base));
      greatest[r] = top;
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < C::kTile / 8; ++n) {
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          scores[n][i] = exp2_fast(math::fma(scores[n][i], unit(), -base));
          sum += scores[n][i];
        }
      }
      total[r] = math::fma(total[r], shrink[r], sum);
    }
  }
  /// After the last keys: sums over whole rows.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < 2; ++r) total[r] = over_row<Sum>(total[r]);
  }
  /// The final factor of a row's sums.
  __device__ __forceinline__ float share(int r) const {
    return total[r] > 0 || total[r] != total[r] ? 1.0f / total[r] : 0.0f;
  }
};

/// The result of one block of queries, and log_sum.
template <class C, class Q, class K, class V, class O, class L>
__device__ __forceinline__ void tensor_attention(int block, const Sees<C, Side::queries>& sees,
                                                 const Q& q, const K& k, const V& v, const O& out,
                                                 const L& log_sum) {
  __shared__ NarrowTile<C> keys[2], values[2];
  const int first = first_of_warp<C>(block);
  const WarpSees<C, Side::queries> warp(first, sees);
  const Span walked = warp.of_block();
  OwnRows<C> queries;
  queries.load(q, first, C::kLength);
  Sums<C> sums = {};
  RowSoftmax<C> softmax;
  walk_tiles<C::kTile>(
      walked.begin, walked.end,
      [&](int key, int stage) {
        fetch<C>(k, key, C::kMemory, keys[stage]);
        fetch<C>(v, key, C::kMemory, values[stage]);
      },
      [&](int key, int stage) {
        if (!warp.sees_tile(key)) return;
        Scores<C> scores;
        Weights<C> weights;
        float shrink[2];
        score_rows<C>(queries, keys[stage], scores);
        squash<C>(scores);
        add_biases(sees, sees.own, first, key, scores);
        warp.hide(key, scores);
        softmax.add(scores, shrink);
        drop<C>(kept_scores(sees, sees.own, first, key), scores);
        round_weights<C>(scores, weights);
#pragma unroll
        for (int n = 0; n < kDepth<C> / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[n][i] *= shrink[i / 2];
        }
        add_rows<C>(weights, values[stage], sums);
      });
  softmax.finish();
  const float share[2] = {softmax.share(0), softmax.share(1)};
  store_rows<C>(sums, share, out, first, C::kLength);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first + warp_row() + r * 8;
    if (warp_column() == 0 && row < C::kLength)
      log_sum.at(row) = log_of(softmax.greatest[r] * logit_unit<C>(), softmax.total[r]);
  }
}

}  // namespace tessera::device
