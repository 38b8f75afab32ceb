// Strided loop nests: how kernels walk views. A nest has sizes and, for each operand, strides in
// elements. It is simplified at bind time (drop dims of size 1, merge dims that all operands walk
// as one), so that inner loops are as long as possible.
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
  /// Orders dims by decreasing |stride| of `operand`; ties by the operands after it.
  void order_by(int operand);
  /// Merges adjacent dims that every operand walks as one. Expects ordered dims.
  void merge();
};

/// A nest over `sizes` with these strides per operand.
Nest make_nest(const std::vector<int64_t>& sizes, std::vector<std::vector<int64_t>> strides);
/// The same with as few dims as possible, in the order of the first operand's memory.
Nest simple_nest(const std::vector<int64_t>& sizes, std::vector<std::vector<int64_t>> strides);

/// Calls body(offsets) for every index of the first `dims` dims, in row-major order. `offsets` has
/// one entry per operand, in elements.
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
