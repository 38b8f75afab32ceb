// Sizes of bounded dims that follow from one another.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "program/program.h"
#include "tessera/graph.h"

namespace tessera {

/// The size of `whole` is `times` that of `part`, both positions among the names of DimEqualities.
struct SizeTie {
  size_t part = 0, whole = 0;
  int64_t times = 1;
  auto operator<=>(const SizeTie&) const = default;
};
/// The sizes of all bounded dims of a graph, and which follow from others: a rename() gives a dim
/// another name and no other size, a reshape() makes one dim of a bounded one and others.
struct DimEqualities {
  std::vector<std::string> names;  ///< the scalars of the program, then dims that it does not need
  std::vector<int64_t> bounds;     ///< of each name; 0 for the step, the seed and counters of loops
  std::vector<SizeTie> ties;
};
DimEqualities size_ties_of(const Graph& graph, const Program& program);

}  // namespace tessera
