// What decides the cost of a training step under any layout: its matmuls, what is reduced or
// gathered, what is stored, and what is kept for backward. Read from the graph once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/graph.h"
#include "tessera/machine.h"

namespace tessera {

using DimSet = uint64_t;  ///< bit d: StepSummary::dims[d]

/// Nodes with the same dims.
struct Work {
  DimSet in = 0, out = 0;                 ///< dims of the operands, of the results
  DimSet reduced = 0;                     ///< reduced dims: split, they leave a partial result
  DimSet batch = 0, m = 0, n = 0, k = 0;  ///< of a matmul; m = n = k = 0: another op
  std::string dtype;
  int64_t item = 4;      ///< bytes of an element of the result
  bool of_layer = true;  ///< false: the gradient of a parameter, which is reduced once a step
  bool awaited = false;  ///< no computing can overlap with the reduction of a partial result
  bool gather_awaited = false;  ///< nor with the all-gather of its operand
  DimSet inside = 0;  ///< in the body of a composite: it is expanded if one of these is split
  std::vector<DimSet> together = {};  ///< but not if one axis splits all dims of one of these
  double flops = 0;                   ///< of one node; 0 in the body of a composite
  double rate = 0;                    ///< the most FLOP/s, of what is no matmul
  double count = 0;                   ///< nodes in a step
};

/// A parameter or state, or a value that is kept from forward to backward.
struct Kept {
  DimSet dims = 0;
  double bytes = 0;
  double count = 0;  ///< tensors; each layer has its own
  double sent = 0;   ///< of a parameter: bytes in the dtypes in which it is gathered
};

struct StepSummary {
  std::vector<std::string> dims;
  std::vector<int64_t> sizes;
  std::vector<DimSet> conflicts;  ///< by dim: those that share a tensor with it
  std::vector<DimSet> together;   ///< pairs that one axis may split: see Op::by_slices
  std::vector<Work> work;
  std::vector<Kept> params, state;
  std::vector<Kept> kept;

  int find(const std::string& dim) const;
  /// Elements of a tensor with these dims.
  double elements(DimSet set) const;
};

/// A graph and the functions that are run.
struct SummarizedGraph {
  const Graph& graph;
  const std::vector<FunctionSpec>& functions;
};

/// The summary of a model with so many layers: that with one layer, plus (layers - 1) times what
/// the model with two has more. `one` and `two` are equal for a model without repeated layers, or
/// whose layers are a loop.
StepSummary summarize_step(const SummarizedGraph& one, const SummarizedGraph& two, int64_t layers,
                           const Machine& machine);

}  // namespace tessera
