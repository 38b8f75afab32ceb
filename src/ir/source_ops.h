// The ops that the graph and the Session themselves need. Defined in ops/.
#pragma once

#include "tessera/op.h"

namespace tessera {

extern const Op kInput, kStored, kIdentity, kCast;
/// What loops consist of (ops/loop.cpp).
extern const Op kLoop, kLoopCarry, kLoopSlice, kLoopIndex;
/// Nodes that a Session looks for (ops/inspect.cpp). It reads operand 0 of a print, and operand 1
/// if there is one: 1 for each iteration of loops that ran. It reads operand 1 of a check_finite:
/// the row-major index of the first element that is not finite, or kAllFinite. The attribute "of"
/// is the name of what the user looks at.
extern const Op kPrint, kCheckFinite;
inline constexpr double kAllFinite = 9007199254740992.0;  // 2^53

/// Attributes that carry a whole type: dim names, sizes, bounded flags and dtype.
Attrs source_attrs(const Shape& shape, DType dtype);
/// The shape and dtype of source_attrs.
Shape shape_of(const Attrs& attrs);
DType dtype_of(const Attrs& attrs);

}  // namespace tessera
