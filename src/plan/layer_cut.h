// Where the repeated layers are in a model's forward pass: what comes before and behind them, and
// what one layer hands to the next.
#pragma once

#include <vector>

#include "tessera/graph.h"
#include "tessera/machine.h"

namespace tessera {

struct LayerCut {
  /// The time of what comes before the first layer, as a share of all that is no layer.
  double time_before = 0;
  /// Parameters that are read before the first layer, and behind the last one, as shares of the
  /// bytes of all that belong to no layer. Some may be read in both places.
  double params_before = 0, params_behind = 0;
  std::vector<int> handed;  ///< values of the graph with two layers that the first hands over
};

/// `one` and `two`: the model with one layer and with two, each with the value that its forward
/// pass ends with. The layer is the run of ops that `two` has more. Throws a usage error that names
/// `model` if there is none.
LayerCut cut_layers(const Graph& one, int one_end, const Graph& two, int two_end,
                    const Machine& machine, const std::string& model);

}  // namespace tessera
