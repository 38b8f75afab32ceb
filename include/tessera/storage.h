// Storage rules written for a whole model: ZeRO (Rajbhandari et al. 2020) and FSDP as layout
// strings.
#pragma once

#include <string>

#include "tessera/graph.h"
#include "tessera/mesh.h"

namespace tessera {

/// ZeRO `stage` over `axis` (or several, "pod+data"): 1 splits the stored optimizer state, 2 also
/// the gradients, 3 also the parameters (FSDP). Compute layouts stay as they are.
///
/// Returns rules to append to `layout`, such as "@params/*gpt.block*.mlp.up.w*/ ff:data": one or
/// more for each parameter of `graph`; parameters of numbered scopes share equal rules. Those of
/// stages 1 and 2, "ff?:data", do nothing for a parameter that is not trained. The largest
/// dim that the product of all axes divides is split; else each axis splits the largest dim that it
/// divides; else the largest dim that it pads by at most half (a dim is padded in every tensor).
/// The dim by whose index a parameter is looked up, as an embedding is, comes last, so that ranks
/// exchange rows instead of the table. A parameter gets no rule if it has fewer elements than there
/// are ranks or if `layout` already splits it over the axes. Throws a usage error for another stage
/// and for an axis that the mesh lacks.
std::string storage_rules(const Graph& graph, const Mesh& mesh, const Layout& layout, int stage,
                          const std::string& axis);

}  // namespace tessera
