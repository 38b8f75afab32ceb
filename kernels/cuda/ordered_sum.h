// Sums in the canonical order (program/sum_order.h) for generated kernels: the terms of a subtree,
// the stack of open subtrees, and a tiled product whose elements are one chain of fused
// multiply-adds a leaf. An element's bits depend on its terms alone: on no tile, thread or GPU.
#pragma once

#include "kernels/cuda/device.h"

namespace tessera::device {

/// A subtree: a box of n terms along each of kDims summed dims, in chunks, the outermost first. I
/// is wide enough for their number. A leaf is numbered from the subtree's first chunk.
template <class I, int kDims>
struct Terms {
  I n[kDims], chunk[kDims];
  int bits[kDims];  ///< of a chunk's number

  __device__ __forceinline__ I count() const {
    I product = 1;
    for (int d = 0; d < kDims; ++d) product *= n[d];
    return product;
  }
  __device__ __forceinline__ I leaves() const {
    I product = 1;
    for (int d = 0; d < kDims; ++d) product *= (n[d] + chunk[d] - 1) / chunk[d];
    return product;
  }
  /// The indices of term t. Returns the number of its leaf.
  __device__ __forceinline__ unsigned long long find(I t, I (&index)[kDims]) const {
    I before = 1, length[kDims];
    unsigned long long leaf = 0;
#pragma unroll
    for (int d = 0; d < kDims; ++d) {
      I whole = before * chunk[d];
      for (int e = d + 1; e < kDims; ++e) whole *= n[e];
      const I c = t / whole;
      t -= c * whole;
      index[d] = c * chunk[d];
      length[d] = n[d] - index[d] < chunk[d] ? n[d] - index[d] : chunk[d];
      before *= length[d];
      leaf = leaf << bits[d] | static_cast<unsigned long long>(c);
    }
#pragma unroll
    for (int d = kDims - 1; d >= 0; --d) {
      index[d] += t % length[d];
      t /= length[d];
    }
    return leaf;
  }
  /// The indices [begin, end) of the terms of a leaf, the i-th of all. Returns its number.
  __device__ __forceinline__ unsigned long long leaf(I i, I (&begin)[kDims],
                                                     I (&end)[kDims]) const {
    unsigned long long number = 0;
    int shift = 0;
#pragma unroll
    for (int d = kDims - 1; d >= 0; --d) {
      const I chunks = (n[d] + chunk[d] - 1) / chunk[d], c = i % chunks;
      i /= chunks;
      begin[d] = c * chunk[d];
      end[d] = n[d] - begin[d] < chunk[d] ? n[d] : begin[d] + chunk[d];
      number |= static_cast<unsigned long long>(c) << shift;
      shift += bits[d];
    }
    return number;
  }
};

/// The open subtrees of kSums sums side by side. An open subtree is the left one of a pair; its
/// level is the highest bit in which the numbers of its leaves differ from those of the right one.
template <class F, class T, int kSums, int kDepth>
struct OpenSums {
  T open[kDepth][kSums];
  unsigned long long levels = 0;
  int top = 0;

  __device__ __forceinline__ void start(T (&sum)[kSums]) const {
#pragma unroll
    for (int j = 0; j < kSums; ++j) sum[j] = F::template identity<T>();
  }
  /// `sum` is that of leaf `from`, and `to` is the next leaf: joins what has no part in it.
  __device__ __forceinline__ void push(T (&sum)[kSums], unsigned long long from,
                                       unsigned long long to) {
    unsigned long long level = from ^ to;
    while ((level & (level - 1)) != 0) level &= level - 1;
    while (top > 0 && (levels & (0 - levels)) < level) join(sum);
#pragma unroll
    for (int j = 0; j < kSums; ++j) open[top][j] = sum[j];
    ++top;
    levels |= level;
    start(sum);
  }
  __device__ __forceinline__ void join(T (&sum)[kSums]) {
    --top;
#pragma unroll
    for (int j = 0; j < kSums; ++j) sum[j] = F::apply(open[top][j], sum[j]);
    levels &= levels - 1;
  }
  __device__ __forceinline__ void finish(T (&sum)[kSums]) {
    while (top > 0) join(sum);
  }
};

/// Offsets of a row or column in an operand and in the result, or of a term in both operands, and
/// where it lies along kSpread dims whose index is that of the row and of the term together.
template <int kSpread>
struct Line {
  long long in, out;
  long long at[kSpread > 0 ? kSpread : 1];
};
template <int kSpread>
struct Term {
  long long a, b;
  unsigned long long leaf;
  long long at[kSpread > 0 ? kSpread : 1];
};

/// Threads of a block, and the terms of a panel, of ordered_product().
constexpr int kProductSide = 16, kProductThreads = kProductSide * kProductSide, kPanel = 16;
constexpr int kPad = 4;  ///< elements behind a row of a panel

/// Fills a panel: terms start, start + 1, ... of lines first, first + 1, ... of an operand, where
/// line(i) says where they are of `count`. kByTerms: neighbouring threads load neighbouring terms.
template <int kLines, bool kByTerms, class T, class I, class TermAt, class LineAt, class Load>
__device__ __forceinline__ void fill_panel(T (&panel)[kPanel][kLines + kPad], long long first,
                                           long long count, I start, I terms,
                                           const TermAt (&found)[kPanel], const LineAt& line,
                                           const Load& load) {
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (kByTerms) {
    const int k = thread % kPanel;
    for (int m = thread / kPanel; m < kLines; m += kProductThreads / kPanel)
      panel[k][m] = start + k < terms && first + m < count ? load(line(first + m), found[k]) : T(0);
  } else {
    const int m = thread % kLines;
    const bool live = first + m < count;
    const auto at = line(live ? first + m : first);
    for (int k = thread / kLines; k < kPanel; k += kProductThreads / kLines)
      panel[k][m] = live && start + k < terms ? load(at, found[k]) : T(0);
  }
}

/// Of element i of thread t along a side of a tile: vectors of up to four lie one behind the other.
template <int kElements>
__device__ __forceinline__ int place_in_tile(int t, int i) {
  constexpr int kVec = kElements < 4 ? kElements : 4;
  return (i / kVec * kProductSide + t) * kVec + i % kVec;
}
/// The elements of thread t in a row of a panel.
template <int kElements, class T>
__device__ __forceinline__ void load_elements(const T* from, int t, T (&to)[kElements]) {
  constexpr int kVec = kElements < 4 ? kElements : 4;
#pragma unroll
  for (int i = 0; i < kElements; i += kVec) {
    const Vec<T, kVec> v = load<kVec>(from + place_in_tile<kElements>(t, i));
#pragma unroll
    for (int j = 0; j < kVec; ++j) to[i + j] = v.x[j];
  }
}

/// A block's tile of 16 kRows x 16 kColumns elements, each the sum over `terms` of a(row, term) *
/// b(column, term). row(i), column(j) and term(t) say where they are; there are `rows` in all, of
/// which the tile has those from `first_row` on, and so of columns. store(row, column, sum) takes
/// each element. Panels of both operands pass through shared memory. The terms of a panel are found
/// while the one before is multiplied. kTermsOf*: neighbouring terms are neighbours in memory.
template <class T, int kRows, int kColumns, int kDepth, bool kTermsOfA, bool kTermsOfB, class I,
          class RowAt, class ColumnAt, class TermAt, class LoadA, class LoadB, class Store>
__device__ __forceinline__ void ordered_product(long long first_row, long long rows,
                                                long long first_column, long long columns, I terms,
                                                const RowAt& row, const ColumnAt& column,
                                                const TermAt& term, const LoadA& a, const LoadB& b,
                                                const Store& store) {
  constexpr int kHigh = kProductSide * kRows, kWide = kProductSide * kColumns;
  using Found = decltype(term(I(0)));
  alignas(16) __shared__ T left[kPanel][kHigh + kPad];
  alignas(16) __shared__ T right[kPanel][kWide + kPad];
  __shared__ Found found[2][kPanel];
  const int thread = static_cast<int>(threadIdx.x), tx = thread % kProductSide,
            ty = thread / kProductSide;
  const auto find = [&](I start, Found(&to)[kPanel]) {
    if (thread < kPanel && start + thread < terms) to[thread] = term(start + thread);
  };
  OpenSums<Sum, T, kRows * kColumns, kDepth> open;
  T sum[kRows * kColumns];
  open.start(sum);
  find(0, found[0]);
  __syncthreads();
  unsigned long long leaf = terms > 0 ? found[0][0].leaf : 0;
  for (I start = 0; start < terms; start += kPanel) {
    const int p = static_cast<int>(start / kPanel % 2);
    fill_panel<kHigh, kTermsOfA>(left, first_row, rows, start, terms, found[p], row, a);
    fill_panel<kWide, kTermsOfB>(right, first_column, columns, start, terms, found[p], column, b);
    __syncthreads();
    find(start + kPanel, found[1 - p]);
    const int here = static_cast<int>(terms - start < kPanel ? terms - start : kPanel);
    for (int k = 0; k < here; ++k) {
      if (found[p][k].leaf != leaf) {
        open.push(sum, leaf, found[p][k].leaf);
        leaf = found[p][k].leaf;
      }
      T x[kRows], y[kColumns];
      load_elements(left[k], ty, x);
      load_elements(right[k], tx, y);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j)
          sum[i * kColumns + j] = math::fma(x[i], y[j], sum[i * kColumns + j]);
      }
    }
    __syncthreads();
  }
  open.finish(sum);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const long long m = first_row + place_in_tile<kRows>(ty, i);
    if (m >= rows) continue;
    const auto to = row(m);
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const long long n = first_column + place_in_tile<kColumns>(tx, j);
      if (n < columns) store(to, column(n), sum[i * kColumns + j]);
    }
  }
}

/// A complete sum has no negative zero.
template <class F, class T>
__device__ __forceinline__ T complete(T x) {
  if constexpr (std::is_same_v<F, Sum>) x += T(0);
  return x;
}

}  // namespace tessera::device
