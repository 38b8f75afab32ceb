// Which layout a value gets, and along which factors an op is split.
#pragma once

#include <optional>
#include <vector>

#include "lower/flow/flow_builder.h"
#include "lower/layout/choose.h"
#include "lower/partition/frame.h"
#include "lower/partition/partition.h"

namespace tessera {

/// Answers questions and changes nothing but the memos in frames.
class LayoutChooser {
 public:
  /// Keeps references. `build` has the layouts of the flow values so far.
  LayoutChooser(const RuleLayouts& rule_layouts, const PartitionOptions& options,
                const FlowBuilder& build)
      : rule_layouts_(rule_layouts), options_(options), build_(build), splits_(rule_layouts) {}

  const IndexSpace& space(const OpCall& call) { return splits_.space(call); }
  Resharder& resharder() { return splits_.resharder(); }

  /// The layout that the rules give a value, or that of the result which an iteration computes it
  /// for.
  TensorLayout rule_layout(const Frame& frame, int value) const;
  /// The layout of a loop's result. With reduce_each_microbatch, what is summed later is laid out
  /// as that sum.
  TensorLayout loop_result_layout(const Frame& frame, int result) const;
  /// The layout in which all consumers read a value, if it is slices of its rule layout; else its
  /// rule layout.
  const TensorLayout& consumer_layout(const Frame& frame, int value);
  /// The layout that a node aims at for its result: of a pointwise op, that of the consumers.
  TensorLayout result_layout(const Frame& frame, const Node& node, int value);
  /// The layout that a new result `flow`, with which `value` is computed, is moved to: `target`,
  /// still partial if all consumers allow that.
  TensorLayout settled_layout(const Frame& frame, int value, int flow, TensorLayout target);
  /// How a node is computed. Where a result would be partial, replaces its layout in
  /// `result_layouts` by that in which it is reduced.
  const Choice& choose(const Frame& frame, const Node& node, const OpCall& call,
                       const std::vector<TensorLayout>& layouts,
                       std::vector<TensorLayout>& result_layouts);

  bool reduces_each_microbatch() const { return options_.reduce_each_microbatch; }
  /// True if the sum over a loop's iterations is reduced, once, and `value` is not.
  bool is_reduced_as_sum(const Frame& frame, int value) const {
    return !options_.reduce_each_microbatch && frame.summed_later(value) >= 0;
  }

 private:
  /// Where a value is read, and the bytes that its readers then send.
  struct ConsumerLayout {
    TensorLayout layout;
    int64_t bytes = 0;
  };
  std::optional<ConsumerLayout> read_by(const Frame& frame, const Node& node, int value,
                                        const TensorLayout& at);
  std::optional<ConsumerLayout> read_by_all(const Frame& frame, int value,
                                            const TensorLayout& by_rules);
  TensorLayout find_consumer_layout(const Frame& frame, int value);
  TensorLayout reduced_layout(const Frame& frame, int value, const FlowValue& have,
                              const TensorLayout& by_rules);
  bool may_stay_partial(const Frame& frame, int value, const TensorLayout& have) const;
  bool splits_inside(const OpCall& call, const std::vector<TensorLayout>& layouts);
  static std::vector<int> readers_like(const Frame& frame, const Node& node);

  const RuleLayouts& rule_layouts_;
  const PartitionOptions options_;
  const FlowBuilder& build_;
  SplitChooser splits_;
};

/// Makes `target` partial as `have` is, and splits it over none of those axes.
void keep_partial(TensorLayout& target, const TensorLayout& have);

}  // namespace tessera
