// Strided loop nests: how kernels walk views. A nest has sizes and, for each of its operands,
// strides in elements. Simplifying it at bind time (dropping dims of size 1, merging dims that all
// operands walk as one) gives the longest inner loops.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/fail.h"
#include "kernels/common/kernel.h"

namespace tessera::kernels {

constexpr int kMaxDims = 24;

struct Nest {
  std::vector<int64_t> sizes;
  std::vector<std::vector<int64_t>> strides;  ///< [operand][dim]

  int rank() const { return static_cast<int>(sizes.size()); }
  int64_t elements() const;
  void add_dim(int64_t size, const std::vector<int64_t>& stride_of_operand);
  void remove_dim(int dim);
  /// Drops dims of size 1.
  void drop_ones();
  /// Orders dims by decreasing |stride| of `operand`; where that is equal, of the next operands.
  void order_by(int operand);
  /// Merges dims that are adjacent and walked as one by every operand. Expects an order.
  void merge();
};

/// A nest over `sizes` whose operands have the given strides.
Nest make_nest(const std::vector<int64_t>& sizes, std::vector<std::vector<int64_t>> strides);
/// The same with as few dims as can be, in the order of the first operand's memory.
Nest simple_nest(const std::vector<int64_t>& sizes, std::vector<std::vector<int64_t>> strides);

/// Calls body(offsets) for every index of the first `dims` dims of the nest, in row-major order;
/// offsets are elements per operand.
template <int kOperands, class Body>
void for_each(const Nest& nest, int dims, Body&& body) {
  std::array<int64_t, kMaxDims> index{};
  std::array<int64_t, kOperands> offsets{};
  for (int d = 0; d < dims; ++d) {
    if (nest.sizes[d] == 0) return;
  }
  while (true) {
    body(static_cast<const std::array<int64_t, kOperands>&>(offsets));
    int d = dims - 1;
    for (; d >= 0; --d) {
      for (int k = 0; k < kOperands; ++k) offsets[k] += nest.strides[k][d];
      if (++index[d] < nest.sizes[d]) break;
      for (int k = 0; k < kOperands; ++k) offsets[k] -= nest.strides[k][d] * nest.sizes[d];
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

/// The value of expression `number` of the step on this rank.
inline int64_t eval(const KernelArgs& args, int number) {
  return args.step->exprs[number].eval(args.coordinates, args.scalars);
}

}  // namespace tessera::kernels
