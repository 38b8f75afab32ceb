// Choosing how each op is computed, and inserting the resharding that follows
// (docs/explanation/who-decides-a-layout.md, c to e).
#pragma once

#include <set>
#include <vector>

#include "lower/flow/flow.h"
#include "lower/layout/rule_layouts.h"

namespace tessera {

struct PartitionOptions {
  bool init = true;  ///< first the function "init", if the graph stores anything
  bool wide_grad_reduce = false, reduce_each_microbatch = false;  ///< see CompileOptions
};

/// Lowers the functions of a graph to slices. A composite stays one op if `kernels` has it and
/// nothing that its body reduces over is split or padded; otherwise its body takes its place.
Flow partition(const Graph& graph, const RuleLayouts& rule_layouts,
               const std::vector<FunctionSpec>& functions, const std::set<const Op*>& kernels,
               const PartitionOptions& options = {});

}  // namespace tessera
