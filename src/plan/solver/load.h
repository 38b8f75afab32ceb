// Reads a problem into the solver's form: the points in time at which memory can bind, and the
// combinations that an edge allows.
#pragma once

#include <vector>

#include "tessera/solver.h"

namespace tessera::solver {

/// The points in time at which the set of live nodes is maximal and the limit could be exceeded.
/// Node v is alive at points [first[v], last[v]).
struct LiveTimes {
  int count = 0;
  std::vector<int> first, last;
};
LiveTimes find_live_times(const Problem& problem);

/// The number of bits by which costs are shifted. Up into spare bits, because prices are fractions
/// of costs; down if the largest sum of allowed costs would exceed kMostCost.
int shift_of(const Problem& problem);

/// The combinations of strategies that an edge allows, over its distinct nodes.
struct Rows {
  std::vector<int> nodes;
  std::vector<std::vector<int>> rows;  ///< a strategy for each of `nodes`
  std::vector<int64_t> costs;          ///< by row
};
Rows allowed_rows(const Problem& problem, const Edge& edge);

}  // namespace tessera::solver
