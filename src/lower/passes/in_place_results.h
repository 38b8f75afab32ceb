// Results in the memory of operands.
#pragma once

#include <map>

#include "lower/passes/liveness.h"
#include "program/program.h"

namespace tessera {

/// The results that pointwise steps may write over an operand that nothing reads later, as the
/// gradient of logits over the logits. By the result's buffer: the operand's, of the same size.
/// `ranges`: the live ranges of the function.
std::map<int, int> in_place_results(const Program& program, const Function& function,
                                    const std::map<int, LiveRange>& ranges);

}  // namespace tessera
