// Where a partial sum may stay one (docs/concepts.md, "who decides a layout", d).
#pragma once

#include <functional>

#include "tessera/graph.h"
#include "tessera/mesh.h"

namespace tessera {

/// True if `node` can take `value`, which is partial as `have` says, without reducing it first: it
/// is linear in it and makes no more elements of it, and its other operands, whose layouts
/// `layout_of` tells, allow it.
bool takes_partial(const Graph& graph, const Node& node, int value, const TensorLayout& have,
                   const std::function<TensorLayout(int)>& layout_of);

}  // namespace tessera
