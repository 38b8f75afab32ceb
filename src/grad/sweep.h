// The reverse sweep over nodes. A region or a loop is one step of it.
#pragma once

#include <unordered_map>
#include <vector>

#include "grad/rematerializer.h"
#include "ir/gradient_region.h"
#include "ir/loop.h"
#include "tessera/ops.h"

namespace tessera {

extern const Op kStopGradient;

/// The gradients so far, by value.
using Pending = std::unordered_map<int, Tensor>;

void accumulate(Pending& pending, int value, Tensor grad, Loc at);

/// Carries the pending gradients back through nodes [first_node, last_node) as far as values depend
/// on xs.
void sweep(Graph& g, Pending& pending, const std::vector<int>& xs, int first_node, int last_node,
           Rematerializer& rematerializer, Loc at);

/// The nodes and regions that a sweep visits.
struct SweepRange {
  int first, last;
  int loop = -1;  ///< those of its iterations; -1: those that are in no loop that has ended
  bool visits(const Graph& g, int of) const { return loop >= 0 ? of == loop : is_open(g, of); }
};
/// The sweep itself. `reached`: per value, whether it depends on what gradients are asked of.
void sweep_range(Graph& g, Pending& pending, const std::vector<bool>& reached,
                 const SweepRange& range, Rematerializer& rematerializer, Loc at);

/// The outermost region of the range that ends at `end`, or -1. In iterations only regions with a
/// rule count: the gradient's loop recomputes the others itself.
int region_that_ends(const Graph& g, const SweepRange& range, int end);
/// One step: a region.
void sweep_region(Graph& g, Pending& pending, const std::vector<bool>& reached, int region,
                  Rematerializer& rematerializer, Loc at);
/// One step: a loop. Its gradient is a loop that runs the other way.
void sweep_loop(Graph& g, Pending& pending, const std::vector<bool>& reached, int node,
                Rematerializer& rematerializer, Loc at);
/// Throws a usage error for a tensor that was made inside a custom_gradient: it has no gradient.
void require_outside_rules(Tensor x);

}  // namespace tessera
