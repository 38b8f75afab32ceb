// Processes that agree on what happened in one of them.
#pragma once

#include <functional>
#include <string>

#include "tessera/cluster.h"

namespace tessera {

/// Runs `work`, which must not communicate, in every process. If it throws anywhere, the failure of
/// the lowest rank is thrown as an Error of its kind in every process. Collective.
void run_together(Cluster& cluster, const std::function<void()>& work);

}  // namespace tessera
