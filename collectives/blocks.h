// Index arithmetic of the collectives, written once for all backends: which elements of which
// rank's `in` go where in `out`.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/communicator.h"

namespace tessera {

/// n0 x n1 rows of `width` contiguous elements; row (i, j) starts at offset + i*stride0 +
/// j*stride1.
struct Strided {
  int64_t offset = 0;
  int64_t n0 = 1, stride0 = 0;
  int64_t n1 = 1, stride1 = 0;
  int64_t width = 0;

  int64_t elements() const { return n0 * n1 * width; }
};

/// The part of every rank's `in` that rank `reader` of `ranks` reads (all kinds but exchange).
Strided wanted_part(const Collective& collective, int ranks, int reader);
/// Where a rank stores in its `out` what it read from rank `from`: the same rows in the same order.
/// Not for reductions and exchange.
Strided kept_part(const Collective& collective, int ranks, int from);
/// The elements of a block that an all_to_all with counts sends to rank `to`. Throws an internal
/// error for a count that the block does not have.
int64_t counted_elements(const Collective& collective, int to);
/// The same rows, contiguous, at the start of a buffer.
Strided packed(const Strided& part);

/// Copies `from` of source to `to` of target. n0, n1 and width must agree; the memory must not
/// overlap.
void copy_strided(void* target, Strided to, const void* source, Strided from,
                  int64_t element_bytes);

/// Scratch memory of local_reduce_strided(); grows in the first call.
struct LocalReduceScratch {
  std::vector<const void*> rows;
  std::vector<char> copies;
};
/// local_reduce() of the same part of every input into `out`, packed.
void local_reduce_strided(const void* const* inputs, int ranks, const Strided& part, void* out,
                          DType dtype, Combiner combiner, LocalReduceScratch& scratch);

/// Rank `part` of `ranks` reduces elements [begin, end) of an all_reduce; the bounds are multiples
/// of cache lines.
struct Share {
  int64_t begin = 0, end = 0;
};
Share share_of(int64_t count, int ranks, int part);

/// Number of elements of `in` and `out`; 0 if a rank has no such operand. Broadcast: `in` counts as
/// `count` at the root and as 0 elsewhere.
struct Extent {
  int64_t in = 0, out = 0;
};
Extent extent_of(const Collective& collective, int ranks, int rank);

/// Total length of a list of runs.
int64_t total(const std::vector<Run>& runs);

}  // namespace tessera
