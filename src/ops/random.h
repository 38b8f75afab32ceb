// Random streams: the name of a random node, as a number.
#pragma once

#include <vector>

#include "ir/repeat.h"
#include "tessera/ops.h"

namespace tessera {

/// A stream that no other random node of the graph has; a function of the current scope.
int64_t new_stream(Graph& g);
/// dropout with a stream given by the caller: a body that is built again draws the same mask.
/// copies: those of the scope that draws it (copies_of_scopes()).
Tensor dropout_of_stream(Tensor x, double rate, int64_t stream, const std::vector<Repeat>& copies,
                         Loc at = Loc::current());

}  // namespace tessera
