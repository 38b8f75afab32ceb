// Loops: a body that is compiled once and runs many times. What is split over ranks, communicated
// and stored follows the same rules as everywhere; gradients go through (but for the number of
// iterations), and every node of a body is a node of the graph, with its scope and source line.
// What an iteration makes can be used outside only as a carry, stacked, or summed. All functions
// throw usage errors for bodies that change the shape or dtype of a carry.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/ops.h"

namespace tessera {

struct LoopOptions {
  bool unroll = false;  ///< as many copies of the body instead of a loop: the same numbers
};

/// What an iteration begins with.
struct Iteration {
  std::vector<Tensor> carries;  ///< what the last iteration made
  std::vector<Tensor> slices;   ///< of this iteration
  Tensor index;                 ///< int64, a scalar
};

/// What an iteration makes; of a loop, what it leaves.
struct IterationResults {
  std::vector<Tensor> carries = {};  ///< for the next iteration; of the loop: after the last
  std::vector<Tensor> stacked = {};  ///< of the loop: of all iterations, with their dim in front
  std::vector<Tensor> sums = {};  ///< of the loop: over all iterations. What is partial over mesh
                                  ///< axes stays so, and is combined once, after the loop
};
using IterationBody = std::function<IterationResults(const Iteration&)>;

/// An iteration for each index of `over`, in order. carries: what the first iteration begins with.
/// sliced: tensors with the dim `over`; an iteration gets its slice.
IterationResults scan(Graph& g, const Dim& over, const std::vector<Tensor>& carries,
                      const std::vector<Tensor>& sliced, const IterationBody& body,
                      const LoopOptions& options = {}, Loc at = Loc::current());

/// layer(layer(... x)), once for each index of `layers`, with parameters of its own each time:
/// what `layer` stores has the dim `layers` in front, and starts as if each layer stood alone.
/// Gradients by `layer` keep what they need of each iteration; GradientOptions::recompute names
/// scopes whose values are recomputed instead. Rules for single dims, @params among them, split
/// what the body sees: a layer's parameters are gathered when it runs.
Tensor repeat(const Dim& layers, Tensor x, const std::function<Tensor(Tensor)>& layer,
              const LoopOptions& options = {}, Loc at = Loc::current());

/// Runs `body` as long as `condition` of the carries is true (a bool scalar), at most `most` times.
/// The memory for gradients, and for what is stacked, is planned for `most` iterations; what is
/// stacked is zero where no iteration was.
IterationResults while_loop(const std::function<Tensor(const std::vector<Tensor>&)>& condition,
                            const IterationBody& body, const std::vector<Tensor>& carries,
                            int64_t most, Loc at = Loc::current());

/// The results of `then` if `predicate` (a bool scalar) is true, else those of `otherwise`; only
/// one of them runs. They make tensors of the same shapes and dtypes.
std::vector<Tensor> cond(Tensor predicate, const std::function<std::vector<Tensor>()>& then,
                         const std::function<std::vector<Tensor>()>& otherwise,
                         Loc at = Loc::current());

/// The sums over `parts` microbatches of what `part` makes of each (see MicrobatchScope):
/// gradients, losses.
std::vector<Tensor> sum_over_microbatches(Graph& g, const std::string& dim, int64_t parts,
                                          const std::function<std::vector<Tensor>()>& part,
                                          const LoopOptions& options = {}, Loc at = Loc::current());

}  // namespace tessera
