// Builds a Flow: values, nodes, and the moves that reshard a value for its consumers.
#pragma once

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lower/flow/flow.h"
#include "lower/layout/interval.h"
#include "lower/layout/reshard.h"
#include "lower/layout/rule_layouts.h"

namespace tessera {

class FlowBuilder {
 public:
  explicit FlowBuilder(const RuleLayouts& rule_layouts) : rule_layouts_(rule_layouts) {}

  /// Begins a function. What is added next belongs to it.
  void start(const std::string& name, FunctionKind kind);
  FlowFunction& function() { return flow_.functions.back(); }
  const FlowValue& value(int id) const { return flow_.values[id]; }
  const Flow& flow() const { return flow_; }
  Flow take() { return std::move(flow_); }

  int add_value(FlowValue value);
  void add_node(FlowNode node);
  /// Nodes added between these two belong to a loop iteration; end_iteration() returns them.
  void begin_iteration();
  std::vector<FlowNode> end_iteration();
  /// Moves are shared within a recompute group (Node::recompute_group), never between groups.
  void set_recompute_group(int group) { recompute_group_ = group; }
  /// Returns `value` in layout `to`, adding the cheapest moves. A move is added once per function
  /// and shared by later calls. The result of an op without operands is recomputed in layout `to`
  /// instead of sent, and of an op that only renames dims, the operand is moved: a tensor is sent
  /// once under all of its names. `origin`: the op that needs the value; its reason is used if no
  /// layout rule explains the move.
  int move(int value, const TensorLayout& to, const Origin& origin, Resharder& resharder);
  /// An all_to_all of blocks of `value` will send only the rows that `counts` counts.
  void note_counts(int value, FlowCounts counts) { flow_.values[value].counts = std::move(counts); }
  /// Returns `value` placed as an op needs it.
  int move(int value, const OperandPlacement& to, const Origin& origin, Resharder& resharder);

  /// Returns the elements of `value`, in row-major order, as a tensor like `to`: one exchange.
  int renumber(int value, FlowValue to, const Origin& origin);

 private:
  int exchange(int value, const OperandPlacement& to, const Origin& origin);
  /// The counts of the rows that an all_to_all sends, in the layout in which each rank has those of
  /// its own blocks; or -1 if the blocks are not of single ranks, or not counted.
  int counts_for(int value, const Move& move, const Origin& origin, Resharder& resharder);
  /// If an op without operands computes `value`, adds that op again, split as `to`. Returns -1 if
  /// there is no such op, or if a dim is not exactly one `fresh` factor.
  int recompute(int value, const TensorLayout& to);
  /// If an op renames the dims of its operand, which has the layout of `value`, moves the operand
  /// and renames that. Returns -1 if there is no such op.
  int move_renamed(int value, const TensorLayout& to, const Origin& origin, Resharder& resharder);

  const RuleLayouts& rule_layouts_;
  Flow flow_;
  std::unordered_map<std::string, int> moved_;
  std::unordered_map<int, FlowNode> sources_;  ///< by value: its op, if without operands
  std::unordered_map<int, FlowNode> renames_;  ///< by value: its op, if that only renames dims
  /// What was built before the present loop iteration.
  struct Outside {
    std::vector<FlowNode> nodes;
    std::unordered_map<std::string, int> moved;
  };
  std::vector<Outside> outside_;  ///< one for each enclosing loop
  int recompute_group_ = 0;
};

}  // namespace tessera
