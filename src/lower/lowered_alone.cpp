// The partitioner moves results to their rule layouts, and localizing copies outputs that are no
// buffer of their own. Both are for those who read them, so the moves are taken away and the
// function is left without outputs.
#include "lower/lowered_alone.h"

#include <algorithm>

#include "ir/source_ops.h"
#include "lower/flow/insert_padding_masks.h"
#include "lower/flow/localize.h"
#include "lower/partition/partition.h"

namespace tessera {

namespace {

bool moves_data(FlowKind kind) {
  return kind == FlowKind::all_reduce || kind == FlowKind::reduce_scatter ||
         kind == FlowKind::all_gather || kind == FlowKind::all_to_all || kind == FlowKind::slice ||
         kind == FlowKind::exchange;
}

/// Takes the moves behind a function's outputs away. Returns the flow values as computed.
std::vector<int> strip_moves(FlowFunction& function) {
  std::vector<int> values;
  for (auto& [name, value] : function.outputs) {
    for (bool again = true; again;) {
      again = false;
      for (const FlowNode& node : function.nodes) {
        if (node.out != std::vector<int>{value} || !moves_data(node.kind)) continue;
        value = node.in[0];
        again = true;
      }
    }
    values.push_back(value);
  }
  std::set<int> read(values.begin(), values.end());
  for (size_t n = function.nodes.size(); n-- > 0;) {
    const FlowNode& node = function.nodes[n];
    const bool is_read =
        std::any_of(node.out.begin(), node.out.end(), [&](int v) { return read.contains(v); });
    if (is_read || node.kind == FlowKind::input) {
      read.insert(node.in.begin(), node.in.end());
    } else {
      function.nodes.erase(function.nodes.begin() + static_cast<std::ptrdiff_t>(n));
    }
  }
  function.outputs.clear();
  return values;
}

}  // namespace

LoweredAlone lowered_alone(const Graph& graph, const FunctionSpec& function, const Mesh& mesh,
                           const Layout& layout, const std::set<const Op*>& kernels) {
  LoweredAlone alone;
  const RuleLayouts rule_layouts(graph, mesh, layout);
  Flow flow = partition(graph, rule_layouts, {function}, kernels, {.init = false});
  for (const int value : strip_moves(flow.functions[0])) {
    alone.outputs.push_back(flow.values[static_cast<size_t>(value)].layout);
    alone.outputs.back().dirty = 0;
  }
  for (const Node& node : graph.nodes()) {
    if (node.op == &kInput) alone.inputs.push_back(rule_layouts.of(graph.value(node.out[0])));
  }
  insert_padding_masks(flow, rule_layouts);
  alone.program = localize(graph, flow, rule_layouts);
  return alone;
}

}  // namespace tessera
