// Rules that ask for equal work: `length:context*2`.
#pragma once

#include "tessera/mesh.h"

namespace tessera {

/// True if the rule, as written, ends in `*2`: ops whose work grows along the dim give each rank
/// two intervals of it that have the same work together. The axes are those before the `*2`.
inline bool asks_for_equal_work(const LayoutRule& rule) { return rule.text.ends_with("*2"); }

}  // namespace tessera
