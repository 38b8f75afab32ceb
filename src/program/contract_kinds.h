// What the dims of a contraction are (Step::attrs "kinds" of contract, one for each dim of the
// views).
#pragma once

#include <cstdint>

namespace tessera::contract_kinds {

enum DimKind : int64_t {
  kBatch = 0,   ///< of both operands and the result
  kRow = 1,     ///< of the first operand and the result
  kColumn = 2,  ///< of the second operand and the result
  kSum = 3,     ///< contracted
};

}  // namespace tessera::contract_kinds
