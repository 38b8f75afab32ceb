// The ops that the graph itself needs: inputs, stored tensors, identity. Defined in
// ops/sources.cpp.
#pragma once

#include "tessera/op.h"

namespace tessera {

extern const Op kInput, kStored, kIdentity;

/// Attributes that carry a whole type: dim names, sizes, bounded flags and dtype.
Attrs source_attrs(const Shape& shape, DType dtype);
/// The shape of source_attrs, under an optional prefix-free "dims", "sizes", "bounded".
Shape shape_of(const Attrs& attrs);
DType dtype_of(const Attrs& attrs);

}  // namespace tessera
