// Products of packed panels whose sums have one order (program/sum_order.h): each element is a
// chain of fused multiply-adds per leaf, and leaves are joined by a binary tree, whose open
// subtrees lie on a stack of tiles in the first cache. So an element's bits depend on its terms
// alone: on no tile, row, column, thread or width of a vector.
#pragma once

#include <cstdint>
#include <span>

namespace tessera::cpu {

/// The terms of a sum: leaf i ends before term ends[i]; then joins[i] subtrees are joined to it. A
/// complete sum has no negative zero.
struct OrderedTerms {
  std::span<const int64_t> ends, joins;
  bool is_complete = false;
};

/// The tiles of one instruction set. `a` is packed as [term][rows], `b` as [term][columns]; row r
/// of the result goes to out[r]. `stack` has the open subtrees, and no result lies there.
template <class T>
struct OrderedTile {
  int64_t rows, columns;
  void (*run)(const OrderedTerms& terms, const T* a, const T* b, T* stack, T* const* out);
  /// The same with a row of A at each of `a`, whose terms are `step` apart.
  void (*run_strided)(const OrderedTerms& terms, const T* const* a, int64_t step, const T* b,
                      T* stack, T* const* out);
};

/// What attention does with the columns of such a tile besides: x has rows of `columns` elements,
/// one for each key, and a column is a query. Results and operands by column are arrays as long as
/// a row.
template <class T>
struct OrderedColumns {
  /// x = scale x where begin <= row < end, else `hidden`; most: the largest one of each column.
  void (*mask)(T* x, int64_t rows, T scale, const T* begin, const T* end, T hidden, T* most);
  void (*subtract)(T* x, int64_t rows, const T* by);
  void (*divide)(T* x, int64_t rows, const T* by);
  void (*sum)(const OrderedTerms& terms, const T* x, T* out);
  /// Whether none of n elements is infinite or NaN.
  bool (*is_finite)(const T* x, int64_t n);
  /// g = weights (g - inner) scale.
  void (*gradient)(const T* weights, T* g, int64_t rows, const T* inner, T scale);
};

template <class T>
struct OrderedKernels {
  OrderedTile<T> tile;
  OrderedColumns<T> columns;
};

struct OrderedOps {
  const char* name;
  OrderedKernels<float> float32;
  OrderedKernels<double> float64;
};

extern const OrderedOps kOrderedBaseOps;
extern const OrderedOps kOrderedAvx2Ops;
extern const OrderedOps kOrderedAvx512Ops;

/// The instruction sets that this processor can run, the best one last.
std::span<const OrderedOps* const> usable_ordered_ops();

}  // namespace tessera::cpu
