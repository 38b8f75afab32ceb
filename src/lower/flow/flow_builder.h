// The flow while it is built: values, nodes, and the moves that reshard a value where it is needed.
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

  /// Begins a function; what is added then belongs to it.
  void start(const std::string& name);
  FlowFunction& function() { return flow_.functions.back(); }
  const FlowValue& value(int id) const { return flow_.values[id]; }
  const Flow& flow() const { return flow_; }
  Flow take() { return std::move(flow_); }

  int add_value(FlowValue value);
  void add_node(FlowNode node);
  /// What is added from here on belongs to the iterations of a loop, until end_iteration()
  /// returns it.
  void begin_iteration();
  std::vector<FlowNode> end_iteration();
  /// Moves are shared within a recompute group (Node::recompute_group), never between two.
  void set_recompute_group(int group) { recompute_group_ = group; }
  /// `value` in layout `to`, through the cheapest moves; the result of an op without operands is
  /// recomputed there instead. Each move is added once a function. `origin`: of the op that needs
  /// it; its reason is given if no rule asks for the move.
  int move(int value, const TensorLayout& to, const Origin& origin, Resharder& resharder);
  /// `value` where an op needs it.
  int move(int value, const Placement& to, const Origin& origin, Resharder& resharder);

  /// The elements of `value`, in the same order, as a tensor `to`.
  int renumber(int value, FlowValue to, const Origin& origin);

 private:
  int exchange(int value, const Placement& to, const Origin& origin);
  /// The result of the op without operands that computes `value`, split as `to`; -1 if there is no
  /// such op, or its dims do not follow its factors one by one.
  int recompute(int value, const TensorLayout& to);

  const RuleLayouts& rule_layouts_;
  Flow flow_;
  std::unordered_map<std::string, int> moved_;
  std::unordered_map<int, FlowNode> sources_;  ///< by value: ops without operands
  /// What was built outside of the iterations of a loop.
  struct Outside {
    std::vector<FlowNode> nodes;
    std::unordered_map<std::string, int> moved;
  };
  std::vector<Outside> outside_;  ///< for each loop around what is being built
  int recompute_group_ = 0;
};

}  // namespace tessera
