#include "ops/bounded.h"

#include "ops/infer.h"

namespace tessera {

namespace {

Shape with_dim(const Shape& shape, const Dim& dim) {
  std::vector<Dim> dims = shape.dims();
  for (Dim& d : dims) {
    if (d.name == dim.name) d = dim;
  }
  return Shape(std::move(dims));
}

}  // namespace

Tensor present(Graph& g, const Dim& dim, Loc at) {
  return less(iota(g, dim, DType::int32, at), dim_size(g, dim, DType::int32, at), at);
}

Tensor with_fixed(Tensor x, const std::string& dim, double fill, Loc at) {
  const Dim bounded = x.dim(dim);
  if (!bounded.is_bounded) return x;
  const Tensor fixed = reshape(x, with_dim(x.shape(), Dim(dim, bounded.size)), at);
  if (fill == 0) return fixed;
  // reshape() zeroes what is not there; only its position tells it from an element.
  const Tensor index = iota(x.graph(), Dim(dim, bounded.size), DType::int32, at);
  const Tensor there = less(index, dim_size(x.graph(), bounded, DType::int32, at), at);
  return transpose(where(there, fixed, constant(x.graph(), fill, x.dtype(), {}, at), at),
                   fixed.shape(), at);
}

Tensor with_bound(Tensor x, const Dim& bounded, Loc at) {
  return reshape(x, with_dim(x.shape(), bounded), at);
}

}  // namespace tessera
