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
/// Returns rules to append to `layout`, one for each parameter of `graph` (equal ones of numbered
/// scopes share one), such as "@params/*gpt.block*.mlp.up.w*/ ff:data": the largest dim that the
/// axis divides on a rank is split, or else the largest, which is then padded. A parameter that has
/// fewer elements than the axis has ranks, or that `layout` already splits over the axis, gets
/// none. Throws a usage error for another stage and for an axis that the mesh lacks.
std::string storage_rules(const Graph& graph, const Mesh& mesh, const Layout& layout, int stage,
                          const std::string& axis);

}  // namespace tessera
