// Makes the loops of a Flow steps of a Program.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <vector>

#include "lower/flow/flow.h"
#include "lower/flow/program_builder.h"

namespace tessera {

class LoopLocalizer {
 public:
  using AddNodes = std::function<void(const std::vector<FlowNode>&)>;
  /// Keeps a reference. `add_nodes` adds the steps of nodes to the builder's current function.
  LoopLocalizer(ProgramBuilder& build, AddNodes add_nodes)
      : build_(build), add_nodes_(std::move(add_nodes)) {}

  /// Adds the steps of a loop's node.
  void add_loop(const FlowNode& node);

 private:
  View slice_at(const FlowLoop& loop, View whole, int dim, int counter);
  View place_of(const FlowLoop& loop, int value, int result, int counter);
  void find_direct_sums(const FlowNode& node);
  void begin_loop(const FlowNode& node, int counter);
  void set_slices(const FlowLoop& loop, int counter);
  void make_results(const FlowNode& node);
  Function body_of(const FlowNode& node, int counter);
  void end_iteration(const FlowNode& node, int counter);
  void add_early(size_t first);
  Step loop_step(const FlowNode& node, int counter, Function body);
  void add_stages(const FlowNode& node, int counter);
  void add_pipeline(const FlowNode& node);
  void make_passed(const FlowNode& layers);
  void add_share(const FlowNode& node, const FlowLoop& pipeline);
  Step& last_exchange();
  void add_move(const FlowNode& move, bool is_next);
  void add_arrival(const FlowLoop& loop, const FlowNode& move, int counter);
  void add_ticks(const FlowNode& node, Function& tick, int64_t ticks, int first_buffer,
                 Function* outside);
  void enter(const FlowLoop& layers, const FlowLoop::Carry& carry, const Origin& origin);
  int tick_of(const FlowLoop& layers);
  int stages_of(int axis) const { return build_.program().axis_sizes[static_cast<size_t>(axis)]; }
  bool has_padding(const FlowLoop& loop) const;
  int64_t iterations_here(const FlowLoop& loop) const;
  void fill_with_zeros(const View& view, const Origin& origin);
  void add_to_sum(const View& sum, const View& value, const Origin& origin);
  void push_subtree(const View& sum, const View& value, const Origin& origin);

  ProgramBuilder& build_;
  AddNodes add_nodes_;
  /// By flow value that an inner loop stacks: the sum of the outer loop that accumulates its
  /// slices.
  std::map<int, View> sums_;
  /// The carries of layers in stages that are in a pipeline: their buffers outlive a tick.
  std::set<int> passed_;
  /// The loop whose sums are added up in a tree: its counter and its iterations, the leaves.
  struct Tree {
    int counter = -1;
    std::vector<int64_t> joins;  ///< of each leaf, see OpenSubtrees
  } tree_;
  std::map<int, std::vector<int>> open_;  ///< by the buffer of a sum in a tree: all open subtrees
  std::set<int> made_;  ///< results of shares of the present pipeline; chunks have some in common
};

}  // namespace tessera
