// The clocks of ranks on several hosts, beside each other.
#pragma once

#include <functional>
#include <vector>

#include "base/clock.h"
#include "tessera/cluster.h"

namespace tessera {

/// What `clock` (seconds, of the rank's host) of each rank is ahead of rank 0's, within half of the
/// fastest of some gathers: nobody leaves a gather before the others entered it (F. Cristian 1989,
/// "Probabilistic clock synchronization"). 0 where the ranks may have one clock. Every rank calls.
std::vector<double> clock_offsets(Cluster& cluster,
                                  const std::function<double()>& clock = host_seconds);

}  // namespace tessera
