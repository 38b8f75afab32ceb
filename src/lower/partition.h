// Choosing how each op is computed, and inserting the moves that follow (docs/concepts.md, "who
// decides a layout", c to e).
#pragma once

#include <set>
#include <string>
#include <vector>

#include "lower/flow.h"
#include "lower/home.h"

namespace tessera {

struct PartitionOptions {
  bool init = true;  ///< first the function "init", if the graph stores anything
  bool wide_sums = false, sums_of_parts = false;  ///< see CompileOptions
};

/// Lowers the functions of a graph to slices. A composite is kept whole where `kernels` has it
/// and nothing that its body reduces over is split or padded; elsewhere its body takes its
/// place.
Flow partition(const Graph& graph, const HomeLayouts& homes,
               const std::vector<FunctionSpec>& functions, const std::set<const Op*>& kernels,
               const PartitionOptions& options = {});

}  // namespace tessera
