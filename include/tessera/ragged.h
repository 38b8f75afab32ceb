// Ragged dims: blocks of rows of which a step fills as many as it counts.
#pragma once

#include <string>

#include "tessera/graph.h"

namespace tessera {

/// x, of which each block has rows along `dim` only up to its count. Example: x [source, owner,
/// place, d_model] has the rows that each source has for each owner; counts [source, owner] says
/// how many; `dim` is "place". counts: int32, in [0, size of `dim`], with some of x's dims except
/// `dim`.
///
/// The result is x itself: the caller makes sure that rows beyond the counts are zero, and so is
/// what reaches them in backward. Where ranks then exchange blocks (an all_to_all between the two
/// dims of the counts, one block for each rank), ranks on the CPU send only rows that are counted;
/// on a GPU whole blocks travel, because its collectives are enqueued before the counts are known.
/// `used`: the share of the rows that is expected to be counted, in (0, 1], for prices.
///
/// Throws usage errors for counts of another dtype, for dims that x lacks, and for another `used`.
Tensor ragged(Tensor x, Tensor counts, const std::string& dim, double used = 1,
              Loc at = Loc::current());

/// counts (int32), none of which exceeds `bound`, at least 0. If one does, on any rank, a Session's
/// run stores nothing and throws a usage error.
Tensor within_bound(Tensor counts, int64_t bound, Loc at = Loc::current());

}  // namespace tessera
