// Strict numerics: the sum over microbatches is one tree, in which the sum of a microbatch is a
// subtree. So it is added up as it was summed. What is computed of it is computed once, of the
// total, behind the loop: a cast, a scale, its sum with another gradient of the same parameter.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <vector>

#include "lower/partition/flow_emitter.h"

namespace tessera {

class HoistSums {
 public:
  /// Keeps references. `loop`: over microbatches, with its body.
  HoistSums(const RuleLayouts& rule_layouts, FlowEmitter& emit, FlowLoop& loop)
      : rule_layouts_(rule_layouts), emit_(emit), loop_(loop) {}

  /// Replaces the sums of the loop by those that are added up, and removes from its body what is
  /// computed of them only.
  void run();
  /// Adds that behind the loop. totals: of the loop's sums. Returns the values of the sums that
  /// the loop had before. frame, node: of the loop.
  std::vector<int> add(const std::vector<int>& totals, const Frame& frame, const Node& node);
  /// True if results depend on the number of microbatches: something else is made of a sum over
  /// the batch, such as the mean of a batch norm, or a sum of a microbatch is no subtree.
  bool depends_on_microbatches() const { return depends_; }

 private:
  /// What is added up, and the dtypes that its total takes behind the loop, in order.
  struct Total {
    int value = -1;
    std::vector<DType> casts = {};
  };

  /// The node that makes a value, or null.
  using FindMaker = std::function<const FlowNode*(int)>;
  const FlowNode* maker_of(int value) const;
  bool is_total(int value);
  bool is_computed_of_totals(const FlowNode& node);
  bool is_invariant(int value);
  int summed_by(const FindMaker& find, int value) const;
  bool is_stack_of_sums(const FlowNode& layers, int value) const;
  Total unrounded(int value);
  Total unrounded_stack(FlowNode& layers, int value);
  void add_copy(const FlowNode& node, std::map<int, int>& values);
  void check_rest(const std::vector<FlowNode>& body);

  const RuleLayouts& rule_layouts_;
  FlowEmitter& emit_;
  FlowLoop& loop_;
  std::vector<int> before_;                      ///< the sums of the loop as it was
  std::map<int, size_t> maker_;                  ///< by value: the node of the body
  std::map<int, bool> is_total_, is_invariant_;  ///< by value
  const FindMaker here_ = [this](int value) { return maker_of(value); };
  std::map<size_t, FlowNode> wide_;  ///< behind a node of the body: the same, not rounded
  std::map<int, Total> totals_;      ///< by value of the iteration
  std::vector<FlowNode> behind_;     ///< what is computed of totals, in order
  std::set<int> summed_;             ///< results of the ops that sum what is added up
  bool depends_ = false;
};

}  // namespace tessera
