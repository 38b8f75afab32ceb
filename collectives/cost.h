// Bytes and time of each collective: the one definition, used by reports, planner and tests.
#pragma once

#include <cstdint>
#include <span>

#include "collectives/communicator.h"

namespace tessera {

/// Bytes that one rank of a group of `ranks` sends, by the best known algorithm; copies inside a
/// rank are free. `bytes` is
///   all_reduce      the bytes of the operand: reduce-scatter, then all-gather
///   reduce_scatter  the bytes of `in`, of which a rank keeps 1/P
///   all_gather      the bytes of `out`, of which a rank already had 1/P
///   all_to_all      the bytes of `in`, of which a rank keeps 1/P
///   exchange        the bytes that go to other ranks
///   broadcast       the bytes of the operand: each is passed on once
///   barrier         ignored: nothing is sent
constexpr int64_t bytes_sent(CollectiveKind kind, int64_t bytes, int ranks) {
  if (ranks <= 1) return 0;
  // bytes * (P - 1) / P, rounded up, without overflow for large operands.
  const int64_t others = bytes - bytes / ranks;
  switch (kind) {
    case CollectiveKind::all_reduce:
      return 2 * others;
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::all_gather:
    case CollectiveKind::all_to_all:
      return others;
    case CollectiveKind::exchange:
    case CollectiveKind::broadcast:
      return bytes;
    case CollectiveKind::barrier:
      return 0;
  }
  return 0;
}

// ---------------------------------------------------------------------------------------- time
// Seconds of a collective from the latency and bandwidth of its links. A group spans a few tiers of
// links, innermost first. Example: of 16 ranks on 2 hosts, 8 are joined by the links of a host and
// 2 by the network. n = product of all `ranks`.

struct LinkHop {
  int64_t ranks = 1;     ///< groups of the tier below that this tier joins
  double latency = 0;    ///< seconds per step
  double bandwidth = 0;  ///< bytes/s of one rank, each way, while all send
};

/// ring: n - 1 steps to a neighbour (all_to_all: pairwise); the ranks of a host share their links
/// to other hosts. tree: log2(n) steps (all_reduce, broadcast: double binary tree; all_gather,
/// reduce_scatter: halving and doubling; all_to_all: Bruck). hierarchical: inside each host, then
/// between hosts on each rank's part, then inside again.
enum class Algorithm : uint8_t { ring, tree, hierarchical };
const char* to_string(Algorithm algorithm);

/// bytes: as for bytes_sent(). An exchange is one step over the outermost tier.
double collective_seconds(CollectiveKind kind, Algorithm algorithm, double bytes,
                          std::span<const LinkHop> hops);

struct CollectiveChoice {
  Algorithm algorithm = Algorithm::ring;
  double seconds = 0;
};
/// The fastest algorithm; the first of equals.
CollectiveChoice fastest(CollectiveKind kind, double bytes, std::span<const LinkHop> hops);

}  // namespace tessera
