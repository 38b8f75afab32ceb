// Processes that agree on what happened in one of them.
#pragma once

#include <functional>
#include <string>

#include "tessera/cluster.h"

namespace tessera {

/// The first text, in order of rank, that is not empty; "" if all are. Collective.
std::string first_text(Cluster& cluster, const std::string& mine);

/// Runs `work`, which must not communicate, in every process. If it throws anywhere, the failure of
/// the lowest rank is thrown as an Error of its kind in every process. Collective.
void run_together(Cluster& cluster, const std::function<void()>& work);

}  // namespace tessera
