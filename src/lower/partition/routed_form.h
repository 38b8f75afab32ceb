// The forms of composites with routed rows (Op::routing) where the groups are split.
#pragma once

#include <optional>

#include "ir/body.h"
#include "lower/partition/program_variant.h"
#include "lower/partition/token_slices.h"

namespace tessera {

/// The call with `slices` slices of the groups, one for each rank along their axes, as a dim with
/// the groups' name. With `tokens`, rows are dispatched to the ranks of their groups, which compute
/// them, and the results combined where the tokens are. Else each slice of the groups computes its
/// rows of all tokens.
Body routed_form(const OpCall& call, int64_t slices, const std::optional<TokenSlices>& tokens,
                 const ProgramVariant& variant);

}  // namespace tessera
