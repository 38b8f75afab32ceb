#include "kernels/cpu/indexed_terms.h"

#include <algorithm>
#include <numeric>

namespace tessera::cpu {

IndexedTerms::IndexedTerms(const OrderedPlace& from, const OrderedPlaces& places, int index,
                           int64_t rows)
    : index_(index) {
  size_t run = 0;
  for (size_t leaf = 0; leaf < from.ends.size(); ++leaf) {
    for (; run < static_cast<size_t>(from.ends[leaf]); ++run) {
      for (int64_t i = 0; i < from.runs[run].count; ++i) {
        for (int x = 0; x <= index; ++x)
          at_[x].push_back(from.runs[run].at[x] + i * places.strides[x]);
        leaves_.push_back(from.numbers[leaf]);
      }
    }
  }
  sorted_.resize(leaves_.size());
  first_.resize(static_cast<size_t>(rows) + 3);
}

bool IndexedTerms::sort(const TensorArg& indices, int64_t at, const kernels::IndexedDim& dim) {
  return indices.dtype == DType::int64 ? sort(static_cast<const int64_t*>(indices.data) + at, dim)
                                       : sort(static_cast<const int32_t*>(indices.data) + at, dim);
}

template <class Index>
bool IndexedTerms::sort(const Index* indices, const kernels::IndexedDim& dim) {
  bool bad = false;
  const auto row_of = [&](int64_t at) {
    const int64_t row = dim.local(indices[at], bad);
    return static_cast<size_t>(row < 0 ? dim.size : row);
  };
  std::fill(first_.begin(), first_.end(), 0);
  for (const int64_t i : at_[index_]) ++first_[row_of(i) + 2];
  std::partial_sum(first_.begin(), first_.end(), first_.begin());
  for (size_t t = 0; t < sorted_.size(); ++t)
    sorted_[static_cast<size_t>(first_[row_of(at_[index_][t]) + 1]++)] = static_cast<int64_t>(t);
  return bad;
}

}  // namespace tessera::cpu
