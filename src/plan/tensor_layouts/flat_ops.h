// A function of a graph as a list of ops, without the composites that are always replaced by their
// bodies.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "tessera/graph.h"
#include "tessera/op.h"

namespace tessera {

struct FlatValue {
  Shape shape;
  DType dtype = DType::float32;
  std::string name;
  int made_by = -1;               ///< op; -1: an input or a stored tensor
  int of = -1;                    ///< the graph's value; -1: inside of a body
  std::vector<int> readers = {};  ///< ops, each once, in order
  bool is_root = false;           ///< the function returns or stores it
};

struct FlatOp {
  const Op* op = nullptr;
  Attrs attrs;
  std::vector<int> in, out;  ///< values
  int node = -1;             ///< of the graph
  /// How many ops are equal to this one, itself included: lowering adds equal ops on equal operands
  /// once.
  int equal = 1;
  bool is_again = false;  ///< an op before it is equal
};

/// What a function computes, in order.
struct FlatOps {
  /// Throws an unsupported error if the function has loops. `kernels`: composites that stay ops.
  FlatOps(const Graph& graph, const FunctionSpec& function, const std::set<const Op*>& kernels);

  std::vector<FlatOp> ops;
  std::vector<FlatValue> values;
  std::vector<int> of_value;  ///< by value of the graph: that of this list, or -1
};

}  // namespace tessera
