// The functions that activate() knows by name.
#pragma once

#include <string>

#include "tessera/graph.h"

namespace tessera {

/// Throws a usage error with the caller's line for a name that activate() does not know.
void require_activation(const std::string& function, Loc at);

}  // namespace tessera
