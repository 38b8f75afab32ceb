// How a loop gets into a graph.
#pragma once

#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tessera/graph.h"

namespace tessera {

/// Builds a loop: what is added while it lives is part of every iteration, until finish(). A
/// builder that is destroyed before (by an exception) leaves nodes that nothing reads.
class LoopBuilder {
 public:
  /// An iteration for each index of `over`; from the last to the first if `reverse`.
  LoopBuilder(Graph& graph, const Dim& over, bool reverse = false);
  ~LoopBuilder();
  LoopBuilder(const LoopBuilder&) = delete;

  /// The loop's position in Graph::loops().
  int number() const { return number_; }
  /// The index of the iteration: int64, a scalar.
  Tensor index(Loc at);
  /// Before the first iteration `init`, then what finish() gets for it.
  Tensor carry(Tensor init, Loc at);
  /// The slice of `whole`, which has the dim `over`, at the iteration's index.
  Tensor slice(Tensor whole, Loc at);
  /// A bool scalar, of a carry or a slice: an iteration runs only if it is true.
  void condition(Tensor flag);
  /// Ends the loop: what each iteration makes. The results: of the carries, of `stacked`, of
  /// `sums`. Throws a usage error for a carry that changes shape or dtype.
  std::vector<Tensor> finish(const std::vector<Tensor>& carries, const std::vector<Tensor>& stacked,
                             const std::vector<Tensor>& sums, Loc at);

  /// While it lives, what is added is part of the loop's own iterations, though one within it is
  /// open.
  class OwnIterations {
   public:
    explicit OwnIterations(LoopBuilder& loop)
        : graph_(loop.graph_), saved_(std::exchange(graph_.open_loop_, loop.number_)) {}
    ~OwnIterations() { graph_.open_loop_ = saved_; }
    OwnIterations(const OwnIterations&) = delete;

   private:
    Graph& graph_;
    int saved_;
  };

 private:
  Graph& graph_;
  int number_;
  std::map<int, Tensor> slices_;  ///< by what they are of
  Tensor index_;
  bool finished_ = false;
};

/// Attributes of a copy of a node, which belongs to copies of loops: old number -> new one.
void rename_loops(Attrs& attrs, const std::unordered_map<int, int>& copies);

}  // namespace tessera
