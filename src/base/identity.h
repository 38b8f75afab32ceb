// What padding holds where an op puts the elements of a dim together.
#pragma once

#include "tessera/dtype.h"

namespace tessera {

/// x combined with it is x. Of bool: 0 for a maximum, 1 for a minimum.
double identity_of(Combiner combiner, DType dtype);
/// What an order by size puts behind every element, or beside equal ones that stand before it: NaN
/// counts as the largest. `smallest` first, or the largest.
double last_in_order(DType dtype, bool smallest);

}  // namespace tessera
