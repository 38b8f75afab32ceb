// The reverse sweep over nodes, and over regions, which are taken as one.
#pragma once

#include <unordered_map>
#include <vector>

#include "grad/again.h"
#include "tessera/ops.h"

namespace tessera {

/// Gradients of values so far, by value id.
using Pending = std::unordered_map<int, Tensor>;

void accumulate(Pending& pending, int value, Tensor grad, Loc at);

/// Adds the gradients of all that nodes [first, last) make of xs, from those that are pending.
/// `again`: which of them read values made a second time.
void sweep(Graph& g, Pending& pending, const std::vector<int>& xs, size_t first_node,
           size_t last_node, Again& again, Loc at);

/// The outermost region that begins at `first` or later and ends at `end`, or -1.
int region_that_ends(const Graph& g, size_t first, size_t end);
/// The step of the sweep that a region is. `reached`: the values that depend on the sweep's xs.
void sweep_region(Graph& g, Pending& pending, const std::vector<bool>& reached, size_t region,
                  Loc at);
/// Throws a usage error for a tensor that was made inside a custom_gradient, from which no gradient
/// comes.
void require_outside_rules(Tensor x);

}  // namespace tessera
