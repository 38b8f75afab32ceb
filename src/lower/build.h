// The flow while it is built: values, nodes, and the moves that bring a value where it is needed.
#pragma once

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lower/flow.h"
#include "lower/home.h"
#include "lower/interval.h"
#include "lower/reshard.h"

namespace tessera {

class FlowBuilder {
 public:
  explicit FlowBuilder(const HomeLayouts& homes) : homes_(homes) {}

  /// Begins a function; what is added then belongs to it.
  void start(const std::string& name);
  FlowFunction& function() { return flow_.functions.back(); }
  const FlowValue& value(int id) const { return flow_.values[id]; }
  const Flow& flow() const { return flow_; }
  Flow take() { return std::move(flow_); }

  int add_value(FlowValue value);
  void add_node(FlowNode node);
  /// What is added from here on belongs to the trips of a loop, until end_trip() returns it.
  void begin_trip();
  std::vector<FlowNode> end_trip();
  /// Moves for nodes of another number (Node::again) are made anew.
  void set_again(int number) { again_ = number; }
  /// `value` in layout `to`, through the cheapest moves, or made there again if it is made of
  /// nothing. A move is made once a function. `origin`: of what needs it; its reason counts where
  /// no rule is found.
  int move(int value, const TensorLayout& to, const Origin& origin, Resharder& resharder);
  /// `value` where an op needs it.
  int move(int value, const Placement& to, const Origin& origin, Resharder& resharder);

  /// The elements of `value`, in the same order, as a tensor `to`.
  int renumber(int value, FlowValue to, const Origin& origin);

 private:
  int bring(int value, const Placement& to, const Origin& origin);
  /// The op without operands that makes `value`, computed where `to` splits it; -1 if there is none
  /// or its dims do not follow its factors one by one.
  int made_again(int value, const TensorLayout& to);

  const HomeLayouts& homes_;
  Flow flow_;
  std::unordered_map<std::string, int> moved_;
  std::unordered_map<int, FlowNode> sources_;  ///< by value: ops without operands
  /// The loops around what is being built: what is outside of their trips.
  struct Outside {
    std::vector<FlowNode> nodes;
    std::unordered_map<std::string, int> moved;
  };
  std::vector<Outside> outside_;
  int again_ = 0;
};

}  // namespace tessera
