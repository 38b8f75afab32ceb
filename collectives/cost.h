// What each collective sends: the one definition that reports, the planner and the tests use.
#pragma once

#include <cstdint>

#include "collectives/communicator.h"

namespace tessera {

/// Bytes that one rank of a group of `ranks` sends, counting what any algorithm must move (so a
/// reduction is the better of the known ones, and copies inside a rank are free). `bytes` is
///   all_reduce      the bytes of the operand: reduce-scatter, then all-gather
///   reduce_scatter  the bytes of `in`, the whole of which a rank keeps 1/P
///   all_gather      the bytes of `out`, the whole of which a rank had 1/P
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

}  // namespace tessera
