// In what the Programs of one graph and layout may differ.
#pragma once

#include <algorithm>

namespace tessera {

/// How rows are dispatched to the ranks of their groups (Op::routing). No variant changes a result.
struct ProgramVariant {
  double capacity = 0;  ///< times Routing::capacity; 0: a rank has places for all rows of another
  /// The chunks into which a rank's tokens are cut: the rows of one are sent while those of another
  /// are multiplied. 0: as lower_chosen() chooses, and 1 for lower().
  int dispatch_chunks = 1;

  int chunks() const { return std::clamp(dispatch_chunks, 1, 8); }  ///< more would be small
};

}  // namespace tessera
