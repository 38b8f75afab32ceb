// The clocks of ranks on several hosts, beside each other.
#pragma once

#include <vector>

#include "tessera/cluster.h"

namespace tessera {

/// Seconds by a clock that only goes forward, of the rank's host.
double host_seconds();

/// What host_seconds() of each rank is ahead of rank 0's, within half of the fastest of some
/// gathers: nobody leaves a gather before the others entered it (F. Cristian 1989, "Probabilistic
/// clock synchronization"). 0 where the ranks may have one clock. Every rank calls.
std::vector<double> clock_offsets(Cluster& cluster);

}  // namespace tessera
