// Which consumers can take a partial value (docs/explanation/who-decides-a-layout.md, d).
#pragma once

#include <functional>

#include "tessera/graph.h"
#include "tessera/mesh.h"

namespace tessera {

/// True if `node` can compute with `value`, partial as in `have`, so that it can be reduced later:
/// the op is linear in it, the result has no more elements, and the layouts of the other operands
/// (`layout_of`) are compatible.
bool takes_partial(const Graph& graph, const Node& node, int value, const TensorLayout& have,
                   const std::function<TensorLayout(int)>& layout_of);

}  // namespace tessera
