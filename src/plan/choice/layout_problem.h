// The problem of choice of a step: a split for every op, a layout for every tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/choice/move_prices.h"
#include "plan/choice/op_splits.h"
#include "plan/choice/repeats.h"
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
class LayoutProblem {
 public:
  /// Keeps references. `function`: one of the graph's. Throws an unsupported error if it has loops.
  LayoutProblem(const Graph& graph, const FunctionSpec& function, const Costs& costs,
                const std::set<const Op*>& kernels, const Repeats& repeats = {});

  solver::Problem& problem() { return problem_; }
  const solver::Problem& problem() const { return problem_; }
  /// The ops and values of the problem.
  const FlatOps& flat() const { return flat_; }
  /// The values that have a layout: all but those that nothing reads. Indices of flat().values.
  std::vector<int> values() const;
  /// All layouts of a value: each axis on one of its dims, or on none.
  std::vector<TensorLayout> layouts_of(int value) const;
  /// The layout that a choice of the problem gives a value, as a rule would say it.
  TensorLayout layout(const std::vector<int>& choice, int value) const;
  /// Seconds that no layouts take less than, however steps are fused and transfers hidden: of the
  /// kernels that remain, each op split as it takes least.
  double floor() const;
  static double seconds(int64_t cost) { return static_cast<double>(cost) * 1e-12; }

 private:
  /// Where an op has or needs a value, by its ways.
  using Places = std::vector<TensorLayout>;
  void add_ops(const std::set<const Op*>& kernels);
  void add_values();
  void add_value(int value);
  void add_read(int value, int node, const Places& needs, double weight);
  void add_made(int value);
  void add_updates();
  void add_seams();
  double weight_of(int op) const;
  bool is_seam(int value) const;
  double weight_of_read(int value, int op) const;
  int64_t stored_bytes(int value, const TensorLayout& layout) const;
  bool is_stored(int value) const;
  std::vector<int64_t> moves(int value, const Places& from, const Places& to, double times);
  Places made(int value) const;
  Places needs(int op, int value) const;
  void add_edge(int a, int b, std::vector<int64_t> cost);

  const Graph& graph_;
  const FunctionSpec& function_;
  const Costs& costs_;
  const Repeats repeats_;
  const FlatOps flat_;
  MovePrices moves_;
  solver::Problem problem_;
  std::vector<int> of_op_, of_value_;  ///< solver node, or -1
  std::vector<int> of_reads_;          ///< by value: the node of the layout that its readers have
  std::vector<std::vector<OpSplit>> ways_;          ///< by op
  std::vector<std::vector<TensorLayout>> layouts_;  ///< by value with a solver node
  std::vector<int> reads_;                          ///< by value: readers, updates and outputs
  std::vector<int> becomes_;  ///< by value: the stored tensor that it is assigned to, or -1
};

}  // namespace tessera
