// A dim divided into slices, for the sharded bodies of ops that need a dim whole.
#pragma once

#include "ops/bounded.h"

namespace tessera {

/// x with `dim` as [dim = slices, inner]. A shorter last slice, and what a bounded dim does not
/// have, is `fill`.
struct Sliced {
  Sliced(const Tensor& whole, const std::string& dim, int64_t slices, double fill)
      : x(with_fixed(whole, dim, fill, Loc::current())),
        inner(dim + "/inner", (whole.dim(dim).size + slices - 1) / slices) {
    const int64_t size = whole.dim(dim).size, room = inner.size * slices;
    if (room > size) x = pad(x, dim, 0, room - size, fill);
    std::vector<Dim> dims;
    for (const Dim& d : whole.shape()) {
      dims.push_back(d.name == dim ? Dim(dim, slices) : d);
      if (d.name == dim) dims.push_back(inner);
    }
    x = reshape(x, Shape(dims));
  }
  Tensor x;
  Dim inner;
};

}  // namespace tessera
