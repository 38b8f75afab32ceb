// The layouts of a model's tensors as the partitioner chose them.
#pragma once

#include <string>
#include <vector>

#include "lower/lower.h"
#include "tessera/placement.h"

namespace tessera {

/// The tensors of the function called `function`: stored ones, then values in order, those inside
/// of loops too. Lowers up to the padding masks. `function` is one of the options'. Throws as
/// lower().
std::vector<PlacedTensor> placed_tensors(const Graph& graph, const LowerOptions& options,
                                         const std::string& function);

}  // namespace tessera
