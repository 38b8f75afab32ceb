// Updates that belong to one function: a model whose functions change its state in different ways,
// such as a decoder that reads many tokens or writes one.
#pragma once

#include <string>

#include "tessera/graph.h"

namespace tessera {

/// As Graph::update(), in runs of the function called `function` only, which has to store updates.
/// A stored tensor may have one update in each function, and then none by Graph::update(). Throws
/// the usage errors of Graph::update().
void update_in(const std::string& function, Tensor stored, Tensor value, Loc at = Loc::current());

}  // namespace tessera
