// Adds nodes to the flow during the walk of a graph, with common subexpression elimination.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "lower/flow/flow_builder.h"
#include "lower/partition/frame.h"
#include "lower/partition/layout_chooser.h"

namespace tessera {

class FlowEmitter {
 public:
  /// Keeps references. `model`: the graph whose functions are lowered.
  FlowEmitter(const Graph& model, FlowBuilder& build, LayoutChooser& layouts)
      : model_(model), build_(build), layouts_(layouts) {}

  /// Begins a function.
  void start(const std::string& name, FunctionKind kind);
  FlowFunction& function() { return build_.function(); }
  const FlowValue& value(int id) const { return build_.value(id); }
  int add_value(FlowValue value) { return build_.add_value(std::move(value)); }
  void add_node(FlowNode node) { build_.add_node(std::move(node)); }
  /// See FlowBuilder::set_recompute_group().
  void set_recompute_group(int group) { build_.set_recompute_group(group); }

  /// Returns `value` in another layout; see FlowBuilder::move().
  int move(int value, const TensorLayout& to, const Origin& origin);
  int move(int value, const OperandPlacement& to, const Origin& origin);
  /// Returns `value` with all partial axes reduced.
  int reduced(int value, const Origin& origin);
  /// The flow value that a consumer reads. Stored tensors are read in their compute layout. A
  /// consumer with a purpose of its own (an optimizer update) reads them as they are stored.
  int operand(const Frame& frame, int value, Purpose consumer);
  /// Moves a new result `flow` to `target`, its rule layout. The result stays partial if its only
  /// consumer can take that; see LayoutChooser::settled_layout().
  int settle(const Frame& frame, int value, int flow, const TensorLayout& target,
             const Origin& origin);

  /// See FlowBuilder::note_counts().
  void note_counts(int value, FlowCounts counts) { build_.note_counts(value, std::move(counts)); }
  /// Adds an op, or returns the results of the same op on the same operands.
  std::vector<int> add_op(FlowNode flow, const OpCall& call, const Choice& choice,
                          const Frame& frame, const Node& node);
  /// Returns `value` in another dtype and the same layout.
  int cast(int value, DType dtype, const Frame& frame, const Node& node);
  /// If an op adds partial and other operands, masks the others to zero except on coordinate 0, so
  /// that they count once.
  void count_once(const Frame& frame, const Node& node, const Choice& choice, std::vector<int>& in);
  /// See FlowBuilder::renumber().
  int renumber(int value, FlowValue to, const Origin& origin);

  /// Nodes added between these two belong to a loop iteration; end_iteration() returns them. Ops of
  /// an iteration are not reused outside of it.
  void begin_iteration();
  std::vector<FlowNode> end_iteration();

 private:
  using Seen = std::unordered_map<std::string, std::vector<int>>;

  const Graph& model_;
  FlowBuilder& build_;
  LayoutChooser& layouts_;
  Seen seen_;                  ///< results of ops, by op, operands, attributes and splits
  std::vector<Seen> outside_;  ///< one for each enclosing loop
};

}  // namespace tessera
