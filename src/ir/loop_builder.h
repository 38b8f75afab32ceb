// How a loop gets into a graph.
#pragma once

#include <map>
#include <vector>

#include "ir/scopes.h"

namespace tessera {

/// Builds a loop. Nodes that are added from here to finish() are those of an iteration. If an
/// exception comes first, they stay as nodes that nothing reads.
class LoopBuilder {
 public:
  /// An iteration for each index of `over`; from the last to the first if `reverse`.
  LoopBuilder(Graph& graph, const Dim& over, bool reverse = false);
  ~LoopBuilder();
  LoopBuilder(const LoopBuilder&) = delete;

  int number() const { return number_; }
  /// The index of the iteration: int64, a scalar.
  Tensor index(Loc at);
  /// A value that is `init` in the first iteration, then what finish() gets for it.
  Tensor carry(Tensor init, Loc at);
  /// The slice of `whole`, which has the dim `over`, at the iteration's index.
  Tensor slice(Tensor whole, Loc at);
  /// An iteration runs only if `flag` is true: a bool scalar made of carries and slices.
  void condition(Tensor flag);
  /// What is summed has been divided by the number of iterations.
  void note_divided() { loop().divided = true; }
  /// Ends the loop with what each iteration makes. Returns the results: those of the carries, of
  /// `stacked`, of `sums`. Throws a usage error for a carry that changes shape or dtype.
  std::vector<Tensor> finish(const std::vector<Tensor>& carries, const std::vector<Tensor>& stacked,
                             const std::vector<Tensor>& sums, Loc at);

 private:
  Loop& loop() { return GraphInternals::of(graph_).loops[number_]; }

  Graph& graph_;
  int number_;
  std::map<int, Tensor> slices_;  ///< by what they are of
  Tensor index_;
  bool finished_ = false;
};

/// What an iteration of the open loop reads of `whole`: the slice of `dim` at its index.
Tensor slice_of_iteration(Tensor whole, const std::string& dim, Loc at);
/// Adds a result to a loop, which may be finished: `value` of its iterations.
Tensor add_loop_result(Graph& graph, int loop, Tensor value, Loop::Result how);

}  // namespace tessera
