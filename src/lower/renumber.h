// Ops that only number their elements anew (IndexSpace::same_order): by their factors, or element
// by element.
#pragma once

#include "lower/choose.h"

namespace tessera {

/// True if operand and result are made of the same factors.
bool nests(const IndexSpace& space);

/// True if the op, whose one operand lies as `now` and whose result belongs at `home`, sends
/// less as one exchange than by the choice of a factor; or if its dims do not nest and padding lies
/// between the elements. Never with a bounded dim or a partial operand.
bool better_renumbered(const OpCall& call, const IndexSpace& space, const TensorLayout& now,
                       const TensorLayout& home, const Choice& choice, const HomeLayouts& homes);

}  // namespace tessera
