// Nodes of a graph whose gradient is not that of the single nodes: recompute() and
// custom_gradient() of ops.h make them.
#pragma once

#include <unordered_map>
#include <vector>

#include "tessera/graph.h"

namespace tessera {

/// Nodes [first, last), which a gradient takes as one.
struct GradientRegion {
  int first = 0, last = 0;
  std::vector<int> in, out;  ///< the values that the rule is given
  GradientRule rule = {};    ///< null: the gradient is that of copies of the nodes
  int loop = -1;             ///< as for nodes
};

const std::vector<GradientRegion>& regions_of(const Graph& graph);
/// Adds the region of all nodes since `region.first`, if there are any.
void add_region(Graph& graph, GradientRegion region);
/// Copies the nodes of a region and the regions in it. Inputs and stored tensors are not copied.
/// Returns value -> copy.
std::unordered_map<int, int> copy_region(Graph& graph, int region);

}  // namespace tessera
