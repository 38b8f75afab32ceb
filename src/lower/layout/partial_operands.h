// Which consumers take a partial value (docs/explanation/who-decides-a-layout.md, d).
#pragma once

#include <functional>

#include "tessera/graph.h"
#include "tessera/mesh.h"

namespace tessera {

/// True if `node` can take `value`, which is partial as in `have`, without reducing it first: it is
/// linear in the value, its result has no more elements, and its other operands allow it.
/// `layout_of`: the layouts of those.
bool takes_partial(const Graph& graph, const Node& node, int value, const TensorLayout& have,
                   const std::function<TensorLayout(int)>& layout_of);

}  // namespace tessera
