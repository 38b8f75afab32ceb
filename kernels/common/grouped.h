// How a grouped matmul is cut into matmuls: which rows belong to which group, and how the
// matrices lie in memory. Decided from sizes and strides only, so that compiling (the workspace)
// and binding come to the same plan.
#pragma once

#include "kernels/common/nest.h"

namespace tessera::kernels {

/// The operands of a grouped matmul (program/specs.h), in the plan's order. kTo is what
/// rows of Z are written to: Z, or the sums of a narrow Z.
enum GroupedOperand { kX, kM, kZ, kIndices, kTo, kGroupedOperands };

struct GroupedPlan {
  bool is_dot = true;                    ///< grouped_dot: Z is the result; else M is
  Nest batch, positions, inner, outer;   ///< of GroupedOperand; inner and outer as M is in memory
  int64_t rows = 1, k = 1, n = 1;        ///< of positions, inner and outer
  int64_t groups = 1, group_stride = 0;  ///< that this rank has; of M
  /// M in memory is a matrix for BLAS with these strides; else it is packed.
  bool plain = false;
  int64_t m_row = 0, m_column = 0;
  /// Several positions, or a batch dim's indices, have one row of Z: they are added up.
  bool adds = false;
  int64_t chunk = 1;  ///< the most rows of one matmul
  /// With `adds`: positions are in so many blocks, and those of one row of Z are in one block.
  int64_t blocks = 1;
  int64_t first_of(int64_t block) const { return rows / together * block / blocks * together; }
  int64_t together = 1;  ///< with `adds`: positions of one row of Z, which follow one another
  int64_t sums = 0;      ///< elements of the sums of a narrow Z; 0: kTo is Z
  /// Workspace, in bytes from its start: ends of the groups of each block (int64), positions by
  /// block and group (int32), the sums, and from `thread` on what each thread has of its own:
  /// packed rows of X and Z, a packed matrix.
  struct {
    int64_t ends = 0, order = 0, sums = 0, thread = 0, x = 0, z = 0, m = 0, bytes = 0;
  } at;
  int64_t thread_bytes() const { return at.bytes - at.thread; }

  /// The offset of a position in an operand.
  int64_t offset(int64_t position, GroupedOperand operand) const {
    int64_t offset = 0;
    for (int d = positions.rank(); d-- > 0;) {
      offset += position % positions.sizes[d] * positions.strides[operand][d];
      position /= positions.sizes[d];
    }
    return offset;
  }
};

/// From the step's views alone.
GroupedPlan plan_grouped(const Step& step);

}  // namespace tessera::kernels
