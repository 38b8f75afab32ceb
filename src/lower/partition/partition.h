// The partitioner: chooses how each op is split and inserts the resharding that follows
// (docs/explanation/who-decides-a-layout.md, c to e). layout_chooser.h decides where a gradient is
// reduced; see also lower.h.
#pragma once

#include <set>
#include <vector>

#include "lower/flow/flow.h"
#include "lower/layout/rule_layouts.h"
#include "lower/partition/program_variant.h"

namespace tessera {

struct PartitionOptions {
  bool init = true;  ///< begin with the function "init", if the graph has stored tensors
  bool wide_grad_reduce = false, reduce_each_microbatch = false;  ///< see CompileOptions
  bool reads_counts = true;                                       ///< see LowerOptions
  int64_t strict_chunks = 0;                                      ///< see CompileOptions
  ProgramVariant variant = {};
};

/// Partitions the functions of a graph. A composite stays one op if `kernels` has it and the dims
/// that its body reduces are neither split nor padded; otherwise its body replaces it.
Flow partition(const Graph& graph, const RuleLayouts& rule_layouts,
               const std::vector<FunctionSpec>& functions, const std::set<const Op*>& kernels,
               const PartitionOptions& options = {});

}  // namespace tessera
