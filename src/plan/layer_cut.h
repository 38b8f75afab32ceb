// Finds the repeated layers in a model's forward pass: what comes before and after them, and which
// values one layer passes to the next.
#pragma once

#include <vector>

#include "tessera/graph.h"
#include "tessera/machine.h"

namespace tessera {

struct LayerCut {
  /// The time before the first layer, as a share of all time outside of layers.
  double time_before = 0;
  /// Parameters that are read before the first layer, and after the last one, as shares of the
  /// bytes of all parameters that belong to no layer. Tied parameters count in both.
  double params_before = 0, params_behind = 0;
  std::vector<int> handed;  ///< values that the first layer passes on, in the graph with two layers
};

/// `one` and `two`: the model with one and with two layers; the ends are the results of their
/// forward passes. The layer is the run of ops that only `two` has. Throws a usage error that names
/// `model` if there is none.
LayerCut cut_layers(const Graph& one, int one_end, const Graph& two, int two_end,
                    const Machine& machine, const std::string& model);

}  // namespace tessera
