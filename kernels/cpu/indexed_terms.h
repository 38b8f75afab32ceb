// The terms of sums whose rows in the result are given by indices (scatter-add, grouped matmuls).
#pragma once

#include "kernels/common/indexed.h"
#include "kernels/cpu/ordered_places.h"

namespace tessera::cpu {

/// The terms of one place, sorted by the row of the result that their index names.
class IndexedTerms {
 public:
  /// index: the operand of the places that has the indices.
  IndexedTerms(const OrderedPlace& from, const OrderedPlaces& places, int index, int64_t rows);

  /// A counting sort that keeps the order of a row's terms. True if an index is bad.
  bool sort(const TensorArg& indices, int64_t at, const kernels::IndexedDim& dim);
  /// The terms of a row; of the last one, `rows`: those that have no row here.
  std::span<const int64_t> of_row(int64_t row) const {
    const int64_t begin = first_[static_cast<size_t>(row)];
    return {sorted_.data() + begin,
            static_cast<size_t>(first_[static_cast<size_t>(row) + 1] - begin)};
  }
  int64_t count() const { return std::ssize(leaves_); }
  /// The offset of a term in an operand.
  int64_t at(int operand, int64_t term) const { return at_[operand][static_cast<size_t>(term)]; }
  /// The number of its leaf. Leaves without a term of the row are left out of its sum, which
  /// changes no bit.
  uint64_t leaf(int64_t term) const { return leaves_[static_cast<size_t>(term)]; }

 private:
  template <class Index>
  bool sort(const Index* indices, const kernels::IndexedDim& dim);

  int index_;
  std::vector<int64_t> at_[3];
  std::vector<uint64_t> leaves_;
  std::vector<int64_t> sorted_, first_;  ///< terms by row; of a row: its first sorted term
};

}  // namespace tessera::cpu
