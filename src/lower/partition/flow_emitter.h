// What the walk of a graph adds to the flow.
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
  void start(const std::string& name);
  FlowFunction& function() { return build_.function(); }
  const FlowValue& value(int id) const { return build_.value(id); }
  int add_value(FlowValue value) { return build_.add_value(std::move(value)); }
  void add_node(FlowNode node) { build_.add_node(std::move(node)); }
  /// See FlowBuilder::set_recompute_group().
  void set_recompute_group(int group) { build_.set_recompute_group(group); }

  /// `value` in another layout; see FlowBuilder::move().
  int move(int value, const TensorLayout& to, const Origin& origin);
  int move(int value, const Placement& to, const Origin& origin);
  /// `value` with nothing left partial.
  int reduced(int value, const Origin& origin);
  /// The flow value that a consumer reads. Stored tensors are read in their compute layout, except
  /// by what belongs to a purpose itself (an optimizer update): that reads them as they are stored.
  int operand(const Frame& frame, int value, Purpose consumer);
  /// Moves a new result `flow` to `target`, its rule layout; it stays partial if all consumers
  /// allow that.
  int settle(const Frame& frame, int value, int flow, const TensorLayout& target,
             const Origin& origin);

  /// Adds an op, or finds the same op on the same operands.
  std::vector<int> add_op(FlowNode flow, const OpCall& call, const Choice& choice,
                          const Frame& frame, const Node& node);
  /// In a sum of partial and other operands, lets the others count on coordinate 0 only.
  void count_once(const Frame& frame, const Node& node, const Choice& choice, std::vector<int>& in);
  /// See FlowBuilder::renumber().
  int renumber(int value, FlowValue to, const Origin& origin);

  /// What is added from here on belongs to an iteration of a loop, until end_iteration() returns
  /// it. Outside of the iteration, none of it is found again.
  void begin_iteration();
  std::vector<FlowNode> end_iteration();

 private:
  using Seen = std::unordered_map<std::string, std::vector<int>>;

  const Graph& model_;
  FlowBuilder& build_;
  LayoutChooser& layouts_;
  Seen seen_;                  ///< results of the ops so far, by all that they depend on
  std::vector<Seen> outside_;  ///< those outside of the loops that are walked
};

}  // namespace tessera
