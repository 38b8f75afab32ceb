// Loops: a body that is compiled once and runs many times, such as twelve layers:
//   Tensor y = repeat(Dim("layers", 12), x, [&](Tensor h) { return layer(g, h); });
// A body follows the same rules as the rest of a model: its nodes have scopes, source lines and
// layouts, and gradients go through it (but not through the number of iterations). Outside the loop
// an iteration's values can be used only as a carry, stacked, or summed. All functions throw usage
// errors for bodies that change the shape or dtype of a carry.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/ops.h"

namespace tessera {

struct LoopOptions {
  bool unroll = false;  ///< copies of the body instead of a loop; numbers are the same
  /// scan(): each iteration has parameters of its own, as a layer of repeat() has. Otherwise those
  /// that the body makes are the same in all iterations, as in the cell of a recurrent network.
  bool own_parameters = false;
  /// over_microbatches(): the examples of a microbatch follow each other in the batch, as strict
  /// numerics want them. Ranks that share a batch then send examples to each other.
  bool contiguous = false;
};

/// What an iteration begins with.
struct Iteration {
  std::vector<Tensor> carries;  ///< what the iteration before made
  std::vector<Tensor> slices;   ///< those of this iteration
  Tensor index;                 ///< int32, a scalar
};

/// What an iteration makes, and what the loop makes of it.
struct IterationResults {
  std::vector<Tensor> carries = {};  ///< for the next iteration; loop: after the last one
  std::vector<Tensor> stacked = {};  ///< loop: of all iterations, with the loop's dim in front
  /// Loop: over all iterations. Sums that are partial over mesh axes are reduced once, after it.
  std::vector<Tensor> sums = {};
  /// over_microbatches(): what is summed has been divided by the number of microbatches. Under
  /// strict numerics bits then depend on a number that is no power of two.
  bool divided = false;
};
using IterationBody = std::function<IterationResults(const Iteration&)>;

/// Runs `body` for each index of `over`, in order. The first iteration begins with `carries`. Each
/// gets its slices of `sliced`, which are tensors with the dim `over`. Parameters that the body
/// makes are the same in all iterations, unless options.own_parameters. Random numbers are others
/// in each.
IterationResults scan(Graph& g, const Dim& over, const std::vector<Tensor>& carries,
                      const std::vector<Tensor>& sliced, const IterationBody& body,
                      const LoopOptions& options = {}, Loc at = Loc::current());

/// layer(layer(... x)), once for each index of `layers`. Each layer has its own parameters: one of
/// [d] is stored for all as [layers, d] and starts as if each layer stood alone. Backward keeps
/// what it needs of each layer, and recomputes what GradientOptions::recompute names. Layout rules,
/// @params among them, split what the body sees: a layer's parameters are gathered when it runs.
Tensor repeat(const Dim& layers, Tensor x, const std::function<Tensor(Tensor)>& layer,
              const LoopOptions& options = {}, Loc at = Loc::current());

/// Runs `body` as long as `condition` of the carries is true (a bool scalar), at most `most` times.
/// Memory for gradients and for stacked values is planned for `most` iterations. Stacked values are
/// zero for iterations that did not run. Parameters and random numbers are as in scan().
IterationResults while_loop(const std::function<Tensor(const std::vector<Tensor>&)>& condition,
                            const IterationBody& body, const std::vector<Tensor>& carries,
                            int64_t most, Loc at = Loc::current());

/// The results of `then` if `predicate` (a bool scalar) is true, else those of `otherwise`. Only
/// one of them runs. They make tensors of the same shapes and dtypes.
std::vector<Tensor> cond(Tensor predicate, const std::function<std::vector<Tensor>()>& then,
                         const std::function<std::vector<Tensor>()>& otherwise,
                         Loc at = Loc::current());

/// What `count` microbatches make of a batch (see MicrobatchScope). Sums are over all of them.
/// Stacked tensors have the dim `dim` and come back for the whole batch, in the order of its
/// examples. There are no carries. Throws usage errors for carries, for a stacked tensor without
/// `dim`, and where no microbatch reads an input with that dim.
IterationResults over_microbatches(Graph& g, const std::string& dim, int64_t count,
                                   const std::function<IterationResults()>& build,
                                   const LoopOptions& options = {}, Loc at = Loc::current());

/// The same for a list: a tensor with the dim `dim`, such as logits, comes back for the whole
/// batch; others, such as losses and gradients, are summed.
std::vector<Tensor> sum_over_microbatches(Graph& g, const std::string& dim, int64_t count,
                                          const std::function<std::vector<Tensor>()>& build,
                                          const LoopOptions& options = {}, Loc at = Loc::current());

}  // namespace tessera
