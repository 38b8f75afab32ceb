// Inputs of a part of a batch.
#pragma once

#include "tessera/graph.h"

namespace tessera {

/// The part's examples of the input `name`, which is fed with those of all parts. Only within a
/// PartScope.
Tensor part_of_input(Graph& g, const std::string& name, const Shape& shape, DType dtype, Loc at);

}  // namespace tessera
