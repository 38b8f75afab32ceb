// Decides the layout of each value, the split of each op, and where a partial value (such as a
// gradient) is reduced. layout/reshard.h finds the collectives, passes/schedule.h their times.
#pragma once

#include <optional>
#include <vector>

#include "lower/flow/flow_builder.h"
#include "lower/layout/choose.h"
#include "lower/partition/frame.h"
#include "lower/partition/partition.h"

namespace tessera {

/// Answers questions. Only memos change.
class LayoutChooser {
 public:
  /// Keeps references. `build` has the layouts of the values added so far.
  LayoutChooser(const RuleLayouts& rule_layouts, const PartitionOptions& options,
                const FlowBuilder& build)
      : rule_layouts_(rule_layouts), options_(options), build_(build), splits_(rule_layouts) {}

  const IndexSpace& space(const OpCall& call) { return splits_.space(call); }
  Resharder& resharder() { return splits_.resharder(); }

  /// The layout that the rules give a value. A value that its loop only stacks gets the stack's
  /// layout without the stacked dim. With reduce_each_microbatch, a value that is widened and
  /// summed later gets the layout of that sum.
  TensorLayout rule_layout(const Frame& frame, int value) const;
  /// The layout of a loop's result. With reduce_each_microbatch, a value that is summed later gets
  /// the layout of that sum.
  TensorLayout loop_result_layout(const Frame& frame, int result) const;
  /// The layout in which all consumers read a value, if that is a local slice of its rule layout
  /// and costs them no more bytes; else the rule layout.
  const TensorLayout& consumer_layout(const Frame& frame, int value);
  /// The layout that a node aims at for its result: the consumers' layout for most pointwise ops,
  /// else the rule layout.
  TensorLayout result_layout(const Frame& frame, const Node& node, int value);
  /// The layout to which a new result `flow`, computed for `value`, is moved: still partial if its
  /// only consumer can take that; else reduced, to `target` or to the slices of it that all
  /// consumers read.
  TensorLayout settled_layout(const Frame& frame, int value, int flow, TensorLayout target);
  /// Chooses the split of a node. If a result would be partial and cannot stay so, its entry in
  /// `result_layouts` becomes the layout it is reduced to, and the split is chosen for that.
  const Choice& choose(const Frame& frame, const Node& node, const OpCall& call,
                       const std::vector<TensorLayout>& layouts,
                       std::vector<TensorLayout>& result_layouts);

  bool is_strict() const { return options_.strict_chunks > 0; }
  bool reduces_each_microbatch() const { return options_.reduce_each_microbatch; }
  /// True if `value` is accumulated over a loop's iterations and only the total is reduced.
  bool is_reduced_as_sum(const Frame& frame, int value) const {
    return !options_.reduce_each_microbatch && frame.is_summed_later(value);
  }

 private:
  int sum_like(const Frame& frame, int value) const;
  /// The layout in which a value is read, and the bytes that its readers then send.
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

/// Makes `target` partial like `have`, and removes those axes from its dims.
void keep_partial(TensorLayout& target, const TensorLayout& have);

}  // namespace tessera
