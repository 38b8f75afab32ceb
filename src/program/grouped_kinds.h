// What the dims of a grouped product are (Step::attrs "kinds" of grouped_dot and grouped_outer, one
// for each dim of the views). A row of X [position, inner] is multiplied by the matrix
// M [group, inner, outer] of its group, which gives a row of Z [position, outer]. grouped_dot has
// the operands X, M, indices and the result Z, grouped_outer X, Z, indices and M.
#pragma once

#include <cstdint>

namespace tessera {

enum GroupedKind : int64_t {
  kGroupBatch,     ///< of rows and matrices
  kGroupPosition,  ///< of rows
  kGroupInner,
  kGroupOuter,
  kGroupIndexed,  ///< of matrices: what the indices choose
};

}  // namespace tessera
