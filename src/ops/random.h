// Random streams: a number for each random node, derived from its name.
#pragma once

#include <vector>

#include "ir/repeat.h"
#include "tessera/ops.h"

namespace tessera {

/// A stream number unique in the graph, a function of the current scope.
int64_t new_stream(Graph& g);
/// dropout with a given stream, so that a body that is built again draws the same mask. copies:
/// those of the scope that draws (copies_of_scopes()).
Tensor dropout_of_stream(Tensor x, double rate, int64_t stream, const std::vector<Repeat>& copies,
                         Loc at = Loc::current());

}  // namespace tessera
