// What the dims of a contraction are (Step::attrs "kinds" of contract, one for each dim of the
// views).
#pragma once

#include <cstdint>

namespace tessera {
struct Step;
}

namespace tessera::contract_kinds {

enum DimKind : int64_t {
  kBatch = 0,   ///< of both operands and the result
  kRow = 1,     ///< of the first operand and the result
  kColumn = 2,  ///< of the second operand and the result
  kSum = 3,     ///< contracted
};

/// True if a "contract" step adds its product to what its result holds (operand 2 is the result),
/// and does nothing else.
bool adds_to_result(const Step& step);

}  // namespace tessera::contract_kinds
