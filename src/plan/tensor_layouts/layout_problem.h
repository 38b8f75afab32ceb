// The problem of choice of a step: a split for every op, a layout for every tensor.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/tensor_layouts/move_prices.h"
#include "plan/tensor_layouts/op_splits.h"
#include "plan/tensor_layouts/repeats.h"
#include "plan/tensor_layouts/step_order.h"
#include "tessera/solver.h"

namespace tessera {

/// One function of a graph without loops, on a mesh. Costs are picoseconds, rounded down.
///
/// A solver node for each op: its splits, with the time of its steps. A node for each stored
/// tensor, for each tensor that a function returns, and for each that several read: its layout. A
/// second node for those that are stored or that layers hand on: the layout in which its readers
/// have it. An edge costs the time of the cheapest reshard. So the cost of a choice is the time of
/// a Program that runs one step after the other, with nothing fused and no transfer hidden. It may
/// be less: equal ops on equal operands count once even if they are split differently, and so may
/// moves of one tensor to several layouts.
///
/// With weights the cost of a choice is a bound instead: of its kernels and of what it sends,
/// without starts and without what fusion may take away, times these.
class LayoutProblem {
 public:
  /// Keeps references. `function`: one of the graph's. Throws an unsupported error if it has loops.
  LayoutProblem(const Graph& graph, const FunctionSpec& function, const Costs& costs,
                const std::set<const Op*>& kernels, const Repeats& repeats = {});

  /// The same choices with these costs. The object may have been asked for others before.
  void set_weights(const ByPhase<StepWeights>& weights);
  const StepOrder& order() const { return order_; }

  solver::Problem& problem() { return problem_; }
  const solver::Problem& problem() const { return problem_; }
  const Graph& graph() const { return graph_; }
  /// The ops and values of the problem.
  const FlatOps& flat() const { return flat_; }
  /// The values that have a layout: all but those that nothing reads. Indices of flat().values.
  std::vector<int> values() const;
  /// All layouts of a value: each axis on one of its dims, or on none.
  std::vector<TensorLayout> layouts_of(int value) const;
  /// The layout that a choice of the problem gives a value, as a rule would say it.
  TensorLayout layout(const std::vector<int>& choice, int value) const;
  /// What no schedule and fusion takes away of a choice.
  ByPhase<PlacedTimes> least(const std::vector<int>& choice);
  static double seconds(int64_t cost) { return static_cast<double>(cost) * 1e-12; }

 private:
  /// Where an op has or needs a value, by its ways.
  using Places = std::vector<TensorLayout>;
  /// An edge that moves a value, `times` times.
  struct MoveEdge {
    int value;
    std::array<int, 2> nodes;
    Places from, to;
    double times;
    Phase phase;
    int link;
  };
  StepOrder find_order();
  LeastTimes least(int op, const OpSplit& way) const;
  void build();
  void add_ops();
  void add_values();
  void add_value(int value);
  void add_read(int value, int node, const Places& needs, double weight, int op);
  void add_made(int value);
  void add_updates();
  void add_seams();
  double weight_of(int op) const;
  bool is_seam(int value) const;
  double weight_of_read(int value, int op) const;
  int64_t slice_bytes(const FlatValue& value, const TensorLayout& layout) const;
  int64_t stored_bytes(int value, const TensorLayout& layout) const;
  bool is_kernel(int op) const;
  bool is_written(int value) const;
  double excess(int value, const TensorLayout& layout) const;
  double excess(int op, const OpSplit& way) const;
  void find_updates();
  bool is_stored(int value) const;
  void add_moves(int a, int b, int value, Places from, Places to, double times, Phase phase,
                 int link);
  Places made(int value) const;
  Places needs(int op, int value) const;
  void add_edge(int a, int b, std::vector<int64_t> cost);

  const Graph& graph_;
  const FunctionSpec& function_;
  const Costs& costs_;
  const Repeats repeats_;
  const FlatOps flat_;
  OpSplits splits_;
  MovePrices moves_;
  const StepOrder order_;
  std::optional<ByPhase<StepWeights>> weights_;
  solver::Problem problem_;
  std::vector<MoveEdge> move_edges_;
  std::vector<int> of_op_, of_value_;  ///< solver node, or -1
  std::vector<int> of_reads_;          ///< by value: the node of the layout that its readers have
  std::vector<const std::vector<OpSplit>*> ways_;   ///< by op
  std::vector<std::vector<TensorLayout>> layouts_;  ///< by value with a solver node
  std::vector<int> reads_;                          ///< by value: readers, updates and outputs
  std::vector<int> becomes_;  ///< by value: the stored tensor that it is assigned to, or -1
};

}  // namespace tessera
