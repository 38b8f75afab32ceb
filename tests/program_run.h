// Runs a Program on thread ranks without a Session, in memory that is poisoned first: whatever a
// step reads before it was written is NaN.
#pragma once

#include <map>
#include <string>

#include "reference.h"
#include "runtime/program.h"
#include "tessera/cluster.h"
#include "tessera/graph.h"

namespace tessera::test {

using Values = std::map<std::string, Whole>;

Program lower_for_cpu(const Graph& graph, const std::string& mesh, const std::string& layout,
                      const std::vector<FunctionSpec>& functions);

/// Runs `function` with the given inputs and stored tensors (others are zero) and returns its
/// outputs and all stored tensors. Throws what a rank throws.
Values run_program(const Program& program, Cluster& cluster, const std::string& function,
                   const Values& values);

}  // namespace tessera::test
