// Neutral elements: the content of padding along a dim that an op combines or sorts.
#pragma once

#include "tessera/dtype.h"

namespace tessera {

/// Neutral element: x combined with it is x. For bool: 0 for max, 1 for min.
double identity_of(Combiner combiner, DType dtype);
/// The value that sorts last: after every element, or equal to the last ones. NaN counts as the
/// largest. Ascending order if `smallest`, else descending.
double last_in_order(DType dtype, bool smallest);

}  // namespace tessera
