// What of a step of training counts when it is cut: its products, what is combined or gathered,
// what is stored, what is kept for backward. Read from the graph once, for all layouts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/graph.h"
#include "tessera/machine.h"

namespace tessera {

using DimSet = uint64_t;  ///< bit d: Outline::dims[d]

/// Nodes with the same dims.
struct Work {
  DimSet in = 0, out = 0;                 ///< of the operands, of the results
  DimSet reduced = 0;                     ///< what is in operands only and leaves a partial result
  DimSet batch = 0, m = 0, n = 0, k = 0;  ///< of a product; m = 0 and n = 0 and k = 0: another op
  std::string dtype;
  int64_t item = 4;      ///< bytes of an element of the result
  bool of_layer = true;  ///< false: the gradient of a parameter, which is combined once a step
  bool awaited = false;  ///< a partial result is waited for, and nothing computed meanwhile
  bool gather_awaited = false;  ///< the same of its operand, if that is gathered
  DimSet inside = 0;  ///< part of a composite that is only expanded where one of these is cut
  std::vector<DimSet> together = {};  ///< nor where one axis cuts all of one of these
  double flops = 0;                   ///< of one of them; 0 for parts of a composite
  double rate = 0;                    ///< FLOP/s that it does not exceed, if it is no product
  double count = 0;                   ///< of them in a step
};

/// A parameter or state, or a value that is kept from forward to backward.
struct Kept {
  DimSet dims = 0;
  double bytes = 0;
  double count = 0;  ///< of tensors, each layer's its own
  double sent = 0;   ///< of a parameter: bytes in the types in which it travels
};

struct Outline {
  std::vector<std::string> dims;
  std::vector<int64_t> sizes;
  std::vector<DimSet> conflicts;  ///< by dim: those that share a tensor with it
  std::vector<DimSet> together;   ///< pairs that one axis may cut: see Op::by_slices
  std::vector<Work> work;
  std::vector<Kept> params, state;
  std::vector<Kept> kept;

  int find(const std::string& dim) const;
  /// Elements of a tensor with these dims.
  double elements(DimSet set) const;
};

/// A graph and what is run of it.
struct OutlineGraph {
  const Graph& graph;
  const std::vector<FunctionSpec>& functions;
};

/// Of a model with so many layers: one with a layer plus layers - 1 times what one with two has
/// more. Equal graphs: of a model without repeated layers, or whose layers are a loop.
Outline outline_of(const OutlineGraph& one, const OutlineGraph& two, int64_t layers,
                   const Machine& machine);

}  // namespace tessera
