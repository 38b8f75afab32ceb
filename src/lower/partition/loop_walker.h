// Adds the loops of the graph to the flow.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "lower/partition/flow_emitter.h"
#include "lower/partition/frame.h"
#include "lower/partition/layout_chooser.h"

namespace tessera {

class LoopWalker {
 public:
  /// Keeps references. `walk` visits the nodes of a frame that belong to `frame.loop`.
  LoopWalker(const RuleLayouts& rule_layouts, FlowEmitter& emit, LayoutChooser& layouts,
             std::function<void(Frame&)> walk)
      : rule_layouts_(rule_layouts), emit_(emit), layouts_(layouts), walk_(std::move(walk)) {}

  /// Adds the loop whose results `node` returns.
  void add_loop(Frame& frame, const Node& node);

 private:
  static bool is_over_layers(const Frame& frame, const Loop& record);
  Loop::Result result_of(const Frame& frame, const Loop& record, size_t i) const;
  int sum_over(const Dim& layers, const Frame& frame, const Node& node, int value, int stack);
  int stage_axis_of(const Frame& frame, const Loop& record) const;
  int64_t chunks_of(const Frame& frame, const Node& node, const FlowLoop& loop) const;
  void require_free_axis(const Frame& frame, const Node& node, const FlowLoop& loop,
                         const std::vector<FlowNode>& nodes) const;
  void add_stages(const Node& node, const Frame& frame, FlowLoop& loop);
  void add_carries(const Frame& frame, const Node& node, FlowLoop& loop);
  void add_slices(const Frame& frame, const Node& node, FlowLoop& loop);
  void walk_iteration(Frame& frame, const Loop& record, FlowLoop& loop);
  std::vector<TensorLayout> end_iteration(Frame& frame, const Node& node, FlowLoop& loop);
  void add_results(Frame& frame, const Node& node, std::shared_ptr<FlowLoop> loop,
                   const std::vector<TensorLayout>& layouts);

  const RuleLayouts& rule_layouts_;
  FlowEmitter& emit_;
  LayoutChooser& layouts_;
  std::function<void(Frame&)> walk_;
};

}  // namespace tessera
