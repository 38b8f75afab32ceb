// Ops that only renumber their elements (IndexSpace::same_order), such as a reshape: they are
// computed by their factors, or as one exchange of elements.
#pragma once

#include "lower/layout/choose.h"

namespace tessera {

/// True if operand and result consist of the same factors.
bool nests(const IndexSpace& space);

/// True if the op sends fewer bytes as one exchange than computed by `choice`; or if it must be one
/// exchange, because its dims do not nest and there is padding between the elements. `now`: the
/// layout of its operand; `by_rules`: that of its result. Always false with a bounded dim or a
/// partial operand.
bool better_renumbered(const OpCall& call, const IndexSpace& space, const TensorLayout& now,
                       const TensorLayout& by_rules, const Choice& choice,
                       const RuleLayouts& rule_layouts);

}  // namespace tessera
