// The forms of composites with routed rows (Op::routing) where the groups are split.
#pragma once

#include <optional>
#include <vector>

#include "ir/body.h"
#include "lower/layout/rule_layouts.h"
#include "lower/partition/program_variant.h"
#include "lower/partition/token_dispatch.h"

namespace tessera {

/// How the ranks along `axes`, which split the groups, have slices of the tokens, if dispatching
/// rows sends less than gathering tokens does; else nothing. `split`: the axes of each dim of the
/// first operand, which has the tokens.
std::optional<TokenSlices> token_slices(const OpCall& call,
                                        const std::vector<std::vector<int>>& split,
                                        const std::vector<int>& axes,
                                        const RuleLayouts& rule_layouts,
                                        const ProgramVariant& variant);

/// The call with `slices` slices of the groups, one for each rank along their axes, as a dim with
/// the groups' name. With `tokens`, rows are dispatched to the ranks of their groups, which compute
/// them, and the results combined where the tokens are. Else each slice of the groups computes its
/// rows of all tokens.
Body routed_form(const OpCall& call, int64_t slices, const std::optional<TokenSlices>& tokens,
                 const ProgramVariant& variant);

}  // namespace tessera
