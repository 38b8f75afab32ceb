// What Sessions need of their Cluster beyond its public API.
#pragma once

#include <string>

#include "runtime/activity.h"
#include "tessera/cluster.h"
#include "tessera/error.h"

namespace tessera {

struct ClusterInternals {
  /// Where a local rank notes its steps.
  static RankActivity& activity(Cluster& cluster, int local_rank);
  /// Whether the thread of a rank was abandoned. It may still use what its Session owns.
  static bool has_abandoned(const Cluster& cluster);
  /// Throws a CommonFailure: all processes throw it alike, so none has to be told.
  [[noreturn]] static void fail_alike(Cluster& cluster, ErrorKind kind, const std::string& message);
};

}  // namespace tessera
