// Runs a Program on thread ranks without a Session, in memory that is poisoned first: whatever a
// step reads before it was written is NaN.
#pragma once

#include <map>
#include <string>

#include "program/program.h"
#include "support/reference.h"
#include "tessera/cluster.h"
#include "tessera/graph.h"

namespace tessera::test {

using Wholes = std::map<std::string, Whole>;

Program lower_for_cpu(const Graph& graph, const std::string& mesh, const std::string& layout,
                      const std::vector<FunctionSpec>& functions);

/// The Program, written and read: the text must be the same again. Functions of user-defined ops,
/// which a text cannot have, are those of `program`.
Program read_back(const Program& program);

/// Reads the Program back and runs `function` once for each round, with the inputs and stored
/// tensors of the round (others are zero) and the memory poisoned again, and returns its outputs
/// and all stored tensors. Throws what a rank throws.
std::vector<Wholes> run_program(const Program& program, Cluster& cluster,
                                const std::string& function, const std::vector<Wholes>& rounds);
inline Wholes run_program(const Program& program, Cluster& cluster, const std::string& function,
                          const Wholes& values) {
  return run_program(program, cluster, function, std::vector<Wholes>{values})[0];
}

}  // namespace tessera::test
