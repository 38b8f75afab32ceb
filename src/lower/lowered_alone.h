// A function as it would be between others: what stands before and behind it is left out.
#pragma once

#include <set>
#include <vector>

#include "lower/lower.h"

namespace tessera {

struct LoweredAlone {
  Program program;  ///< one function; nothing is fused, and every collective is awaited at once
  std::vector<TensorLayout> inputs;  ///< by rules, of the graph's input nodes, in order
  std::vector<TensorLayout>
      outputs;  ///< as computed, perhaps partial: nothing is moved behind them
};

/// Lowers `function` under the rules of `layout`. Throws as lower().
LoweredAlone lowered_alone(const Graph& graph, const FunctionSpec& function, const Mesh& mesh,
                           const Layout& layout, const std::set<const Op*>& kernels);

}  // namespace tessera
