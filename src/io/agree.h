// Agreement of processes on errors.
#pragma once

#include <functional>
#include <string>

#include "tessera/cluster.h"

namespace tessera {

/// Runs `work`, which must not communicate, in every process. If it throws in any, every process
/// throws the failure of the lowest rank, as an Error of its kind. Collective.
void run_together(Cluster& cluster, const std::function<void()>& work);

}  // namespace tessera
