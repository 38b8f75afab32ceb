// The capacity of a dispatch of rows.
#pragma once

#include "tessera/graph.h"

namespace tessera {

/// counts (int32), none of which exceeds `capacity`. If one does, on any rank, a run stores
/// nothing, and a Session repeats it with a variant of the Program whose capacities are larger.
Tensor within_capacity(Tensor counts, int64_t capacity);

}  // namespace tessera
