// Operands of kernels that run along one dim: the other dims as a nest, the dim itself as size and
// strides.
#pragma once

#include "kernels/common/nest.h"

namespace tessera::kernels {

struct AlongDim {
  Nest others;                  ///< one operand per tensor
  int64_t size = 0;             ///< of the dim in the first tensor
  std::vector<int64_t> stride;  ///< by tensor: stride of the dim
};

/// Tensors must agree in all dims but `dim`.
inline AlongDim along_dim(const std::vector<const TensorArg*>& tensors, int64_t dim) {
  const TensorArg& first = *tensors.at(0);
  TESSERA_CHECK(dim >= 0 && dim < static_cast<int64_t>(first.sizes.size()), "dim {} of {} dims",
                dim, first.sizes.size());
  AlongDim a;
  a.size = first.sizes[dim];
  a.others.strides.resize(tensors.size());
  for (const TensorArg* t : tensors) {
    TESSERA_CHECK(t->sizes.size() == first.sizes.size(), "tensors of {} and {} dims",
                  first.sizes.size(), t->sizes.size());
    a.stride.push_back(t->strides[dim]);
  }
  for (int64_t d = 0; d < static_cast<int64_t>(first.sizes.size()); ++d) {
    std::vector<int64_t> s;
    for (const TensorArg* t : tensors) s.push_back(t->strides[d]);
    if (d != dim) a.others.add_dim(first.sizes[d], s);
  }
  a.others.drop_ones();
  a.others.order_by(0);
  a.others.merge();
  return a;
}

}  // namespace tessera::kernels
