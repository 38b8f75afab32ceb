// Storage rules written for a whole model: ZeRO (Rajbhandari et al. 2020) and FSDP as layout
// strings.
#pragma once

#include <string>

#include "tessera/graph.h"
#include "tessera/mesh.h"

namespace tessera {

/// What is stored split over `axis` (or several, "pod+data") although it is computed whole: 1
/// optimizer state, 2 gradients too, 3 parameters too (FSDP).
///
/// Returns rules to append to `layout`, one or more for each parameter of `graph` (equal ones of
/// numbered scopes share them), such as "@params/*gpt.block*.mlp.up.w*/ ff:data". Split is the
/// largest dim that all axes divide on a rank; or else each axis goes to the largest dim that it
/// divides; or else to the largest dim that it pads by a half at most (a dim is padded in every
/// tensor). A parameter that has fewer elements than there are ranks, or that `layout` already
/// splits over the axes, gets none. Throws a usage error for another stage and for an axis that
/// the mesh lacks.
std::string storage_rules(const Graph& graph, const Mesh& mesh, const Layout& layout, int stage,
                          const std::string& axis);

}  // namespace tessera
