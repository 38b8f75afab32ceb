// What a profiled Session measured.
#pragma once

#include <vector>

#include "cost/cost.h"
#include "session/local_ranks.h"
#include "tessera/explain.h"
#include "tessera/session.h"

namespace tessera {

/// See Session::profile().
std::vector<StepTime> step_times(const Program& program, const Mesh& mesh,
                                 const Executor& executor);
/// See Session::kernel_times().
std::vector<KernelReport> kernel_times(const Program& program, const Executor& executor,
                                       const std::string& function, const Costs& costs);
/// See Session::bucket_times(). Collective.
std::vector<BucketTime> bucket_times(Cluster& cluster, const Mesh& mesh, const Program& program,
                                     const LocalRanks& ranks, const Machine* machine);

}  // namespace tessera
