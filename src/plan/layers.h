// Where the repeated layers of a model lie in its forward pass: what stands before and behind them,
// and what one hands to the next.
#pragma once

#include <vector>

#include "tessera/graph.h"
#include "tessera/machine.h"

namespace tessera {

struct LayerCut {
  /// Of the time of what is no layer, the part before the first one.
  double time_before = 0;
  /// Of the bytes of parameters of no layer, what is read before, and behind; both may read some.
  double params_before = 0, params_behind = 0;
  std::vector<int> handed;  ///< values of the graph with two layers that the second takes over
};

/// `one` and `two`: the model with a layer and with two, and the value that the forward pass ends
/// with. The layer is the run of ops that `two` has more. Throws a usage error that names `model`
/// if there is none: then nothing can be cut.
LayerCut cut_layers(const Graph& one, int one_end, const Graph& two, int two_end,
                    const Machine& machine, const std::string& model);

}  // namespace tessera
