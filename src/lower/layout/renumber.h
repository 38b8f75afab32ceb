// Ops that keep the row-major order of their elements (IndexSpace::same_order), such as a reshape.
// They are computed factor by factor, or as one exchange of elements.
#pragma once

#include "lower/layout/choose.h"

namespace tessera {

/// True if all factors are in both operand and result (a merge or a split of dims).
bool nests(const IndexSpace& space);

/// True if the op should be one exchange. Either it then sends fewer bytes than with `choice`, or
/// it must be: its dims do not nest and padding lies between the elements. `now`: the layout of its
/// operand; `by_rules`: that of its result. Always false for a bounded dim or a partial operand.
bool better_renumbered(const OpCall& call, const IndexSpace& space, const TensorLayout& now,
                       const TensorLayout& by_rules, const Choice& choice,
                       const RuleLayouts& rule_layouts);

}  // namespace tessera
