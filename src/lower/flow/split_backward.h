// The backward pass of layers in two loops.
#pragma once

#include <set>

#include "lower/flow/flow.h"

namespace tessera {

struct SplitBackward {
  FlowNode inputs;   ///< what the carries and `needed` results depend on
  FlowNode weights;  ///< the remainder, as gradients of parameters; without results: there is none
};

/// Splits a loop over layers in stages. The first loop also stacks, by layer, the values of its
/// iterations that the second one reads. `needed`: results that are read before the second one
/// runs.
SplitBackward split_backward(Flow& flow, const FlowNode& loop, const Dim& layers,
                             const std::set<int>& needed);

/// The values that layers behind node i of a loop over microbatches depend on. Sums that are
/// continued by chunk are not read there.
std::set<int> read_by_layers_behind(const FlowLoop& microbatches, size_t i);

}  // namespace tessera
