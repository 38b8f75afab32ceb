// What determines the cost of a training step under any layout: its matmuls, what is reduced or
// gathered, what is stored, and what is kept for backward. Read from the graph once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/graph.h"
#include "tessera/machine.h"

namespace tessera {

using DimSet = uint64_t;  ///< bit d: StepSummary::dims[d]

/// Nodes with the same dims and costs.
struct Work {
  DimSet in = 0, out = 0;                 ///< dims of the operands, of the results
  DimSet reduced = 0;                     ///< contracted dims: if split, the result is partial
  DimSet batch = 0, m = 0, n = 0, k = 0;  ///< of a matmul; all 0 for another op
  std::string dtype;
  int64_t item = 4;             ///< bytes of an element of the result
  bool of_layer = true;         ///< false: the gradient of a parameter, reduced once per step
  bool awaited = false;         ///< the reduction of a partial result cannot overlap
  bool gather_awaited = false;  ///< nor can the all-gather of its operand
  DimSet inside = 0;  ///< in the body of a composite: it is expanded if one of these is split
  std::vector<DimSet> together = {};  ///< but not if one axis splits all dims of one of these
  double flops = 0;                   ///< of one node; 0 inside the body of a composite
  double rate = 0;                    ///< FLOP/s at most, if it is not a matmul
  double count = 0;                   ///< nodes in a step
  double in_layers = 0;               ///< of these, nodes that a stage shares with other stages
};

/// A parameter, a state tensor, or a value that is kept from forward to backward.
struct Kept {
  DimSet dims = 0;
  double bytes = 0;
  double count = 0;  ///< number of tensors; each layer has its own
  double sent = 0;   ///< of a parameter: bytes in the dtypes in which it is gathered
  /// Of `bytes`, those of repeated layers. A dim that counts the layers stands in `dims` instead if
  /// they are a loop.
  double in_layers = 0;
};

struct StepSummary {
  std::vector<std::string> dims;
  std::vector<int64_t> sizes;
  std::vector<DimSet> conflicts;  ///< by dim: the dims that share a tensor with it
  std::vector<DimSet> together;   ///< pairs that one axis may split, see Op::sharded_body
  std::vector<Work> work;
  std::vector<Kept> params, state;
  std::vector<Kept> kept;
  DimSet stages = 0;         ///< dims that count layers: an axis that splits one makes stages
  std::vector<Kept> handed;  ///< what a stage hands to the next, and the next one back

  int find(const std::string& dim) const;
  /// Elements of a tensor with these dims.
  double elements(DimSet set) const;
};

/// A graph and the functions to run.
struct SummarizedGraph {
  const Graph& graph;
  const std::vector<FunctionSpec>& functions;
};

/// The summary of a model with `layers` layers: that with one layer plus (layers - 1) times the
/// difference to that with two. `one` and `two` are equal if the model has no repeated layers or
/// they are a loop.
StepSummary summarize_step(const SummarizedGraph& one, const SummarizedGraph& two, int64_t layers,
                           const Machine& machine);

/// Adds what stages of the layers need to know: the dims that count layers, what may not be split
/// with them, and what is handed over. `looped`: the model with its layers as a loop. Adds nothing
/// if there is none.
void add_stages(const Graph& looped, StepSummary& summary);

}  // namespace tessera
