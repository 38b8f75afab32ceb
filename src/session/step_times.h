// What a profiled Session measured.
#pragma once

#include <vector>

#include "session/local_ranks.h"
#include "tessera/session.h"

namespace tessera {

/// See Session::profile().
std::vector<StepTime> step_times(const Program& program, const Executor& executor);
/// See Session::bucket_times(). Collective.
std::vector<BucketTime> bucket_times(Cluster& cluster, const Mesh& mesh, const Program& program,
                                     const LocalRanks& ranks, const Machine* machine);

}  // namespace tessera
