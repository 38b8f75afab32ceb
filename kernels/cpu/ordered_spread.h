// An operand of an index relation in = stride * out + dilation * k - lo, copied among zeros: there
// its index is a sum of one that the result has and one that is summed over, as in a matmul. What
// is outside of the operand is zero.
#pragma once

#include "kernels/cpu/strided_copy.h"

namespace tessera::cpu {

/// One dim of the copy, with `size` elements. The result's index r and the summed index t meet in
/// element first + row * r + term * t. Elements [begin, begin + count) of the operand are copied to
/// elements at, at + step, ...
struct SpreadDim {
  int64_t size = 1, first = 0, row = 1, term = 0;
  int64_t begin = 0, count = 1, at = 0, step = 1;
};

/// The indices of a relation on this rank: where its slices begin, and how long they are.
struct SpreadRelation {
  int64_t stride, dilation, lo;
  int64_t in_begin, in_memory, in_size;
  int64_t out_begin, out_memory, out_size;
  int64_t window_begin, window_memory;

  /// Of an operand with `in`: the result has `out` (or `k`), and `k` (or `out`) is summed over.
  SpreadDim of_in(bool sums_window) const;
  /// Of an operand with `out`: the result has `in`, and `k` is summed over.
  SpreadDim of_out() const;
};

/// Where an operand with these sizes and strides is copied to, for spread dims first, first + 1 ...
class Spread {
 public:
  Spread(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides, size_t first,
         const std::vector<SpreadDim>& dims);

  /// Elements of the copy.
  int64_t elements() const { return elements_; }
  /// Of the copy, along the operand's dims.
  const std::vector<int64_t>& strides() const { return strides_; }
  /// The element in which all summed and result indices are 0.
  int64_t first() const { return first_; }

  template <class T>
  void copy(T* to, const T* from) const {
    std::fill(to, to + elements_, T{});
    copy_.copy(to + to_, from + from_);
  }

 private:
  std::vector<int64_t> strides_;
  int64_t elements_ = 1, first_ = 0, to_ = 0, from_ = 0;
  StridedCopy copy_;
};

}  // namespace tessera::cpu
