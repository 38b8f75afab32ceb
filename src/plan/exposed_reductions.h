// Which reductions across ranks cannot overlap with compute.
#pragma once

#include <vector>

#include "tessera/graph.h"

namespace tessera {

/// True if the all-reduce of n's result cannot overlap: n is heavy, so nothing before it may be
/// computed later (lower/passes/fill_waits.h), and no heavy node lies between n and the first
/// consumer that needs the complete result. Linear nodes take a partial result and pass it on.
/// `needed`: by node, whether it is computed.
bool is_awaited(const Graph& graph, const std::vector<char>& needed, int n);

/// True if no heavy node lies between n and the producer of its only operand: resharding the
/// operand cannot overlap either.
bool follows_operand(const Graph& graph, const std::vector<char>& needed, int n);

}  // namespace tessera
