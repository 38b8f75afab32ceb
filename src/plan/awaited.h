// Which sums over ranks nothing can hide.
#pragma once

#include <vector>

#include "tessera/graph.h"

namespace tessera {

/// needed: by node, whether it is computed. Whether the ranks wait for a result of node `n` as soon
/// as it is computed, if it is combined over some of them: compute steps keep the graph's order,
/// and none that computes much stands before the first that needs it complete. What is linear takes
/// it as it is and hands that on.
bool is_awaited(const Graph& graph, const std::vector<char>& needed, int n);

/// Whether node `n` follows its only operand without anything between that computes much: moving
/// the operand cannot begin earlier.
bool follows_operand(const Graph& graph, const std::vector<char>& needed, int n);

}  // namespace tessera
