// The reverse sweep over nodes, and over regions, which are taken as one.
#pragma once

#include <unordered_map>
#include <vector>

#include "grad/recompute.h"
#include "tessera/ops.h"

namespace tessera {

/// Gradients of values so far, by value id.
using Pending = std::unordered_map<int, Tensor>;

void accumulate(Pending& pending, int value, Tensor grad, Loc at);

/// Adds the gradients of all that nodes [first, last) make of xs, from those that are pending.
/// `recompute`: which of them read values that are recomputed.
void sweep(Graph& g, Pending& pending, const std::vector<int>& xs, size_t first_node,
           size_t last_node, Recompute& recompute, Loc at);

/// The nodes and regions that a sweep visits.
struct SweepRange {
  size_t first, last;
  int loop = -1;  ///< those of this loop's iterations; else those of loops that are open
  bool in_iterations = false;
  bool visits(const Graph& g, int of) const { return in_iterations ? of == loop : g.is_open(of); }
};
/// The sweep itself. `reached`: the values that depend on what gradients are asked of.
void sweep_range(Graph& g, Pending& pending, const std::vector<bool>& reached,
                 const SweepRange& range, Recompute& recompute, Loc at);

/// The outermost region of the range that ends at `end`, or -1. In iterations, what is to be
/// computed twice is no region: the gradient's iterations do it.
int region_that_ends(const Graph& g, const SweepRange& range, size_t end);
/// The step of the sweep that a region is.
void sweep_region(Graph& g, Pending& pending, const std::vector<bool>& reached, size_t region,
                  Recompute& recompute, Loc at);
/// The step of the sweep that a loop is: a loop that runs the other way.
void sweep_loop(Graph& g, Pending& pending, const std::vector<bool>& reached, int node,
                Recompute& recompute, Loc at);
/// Throws a usage error for a tensor that was made inside a custom_gradient, from which no gradient
/// comes.
void require_outside_rules(Tensor x);

}  // namespace tessera
