// Where a layout puts things: the slices of every tensor of a model, and the buffers of a step in
// memory. For pictures; nothing runs and no rank is needed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/compile_options.h"
#include "tessera/dtype.h"
#include "tessera/machine.h"

namespace tessera {

struct PlacedDim {
  std::string name;
  int64_t size = 0;               ///< logical
  int64_t padded = 0;             ///< a multiple of the product of the axes' sizes
  std::vector<std::string> axes;  ///< mesh axes that it is split over, major to minor
};

/// One layout of a tensor. A tensor that is moved has several, in the order of the function.
struct PlacedTensor {
  std::string name;    ///< with scopes
  std::string source;  ///< "model.cpp:41"
  std::string kind;    ///< "parameter", "state", "input" or "activation"
  std::string made;    ///< "stored", "input", an op, or the collective that moved it
  std::string dtype;
  std::vector<PlacedDim> dims;
  std::vector<std::string> partial;  ///< axes over which it is a partial value
  std::string combiner;              ///< of the partial value: "sum"; "" if it is none
  int64_t bytes = 0;                 ///< of a rank, padding included
};

/// A buffer of the transient arena, from its first to its last use.
struct LiveBuffer {
  std::string name;
  int64_t offset = 0, bytes = 0;
  int first = 0, last = 0;  ///< indices of Placement::steps
};

struct Placement {
  Mesh mesh;
  std::vector<PlacedTensor> tensors;  ///< stored ones first, then in the order of the function
  std::vector<std::string> steps;     ///< of the function: "matmul gpt.block0.mlp.up"
  std::vector<LiveBuffer> buffers;    ///< those of a loop's body live as long as the loop
  int64_t transient_bytes = 0;        ///< size of the arena
};

/// Lowers the graph and reports about one function. Throws the usage errors of explain(), and one
/// for an unknown function.
Placement placement(const Graph& graph, const CompileOptions& options,
                    const std::string& function = "train");

/// By axis of a mesh: the link of a machine over which ranks along it talk; of several, the
/// outermost. Throws a usage error for a link class that the machine lacks.
std::vector<std::string> axis_links(const Mesh& mesh, const Machine& machine);

/// A sketch of characters of how one tensor is cut over a mesh: its slices along up to two dims
/// with the ranks that have them, copies, partial sums and padding. The grid of slices is at most
/// `columns` letters wide, if three slices fit.
std::string sketch(const PlacedTensor& tensor, const Mesh& mesh, int columns = 80);

}  // namespace tessera
