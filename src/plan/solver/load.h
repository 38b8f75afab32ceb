// A problem made ready: when memory can bind, what an edge of several nodes allows.
#pragma once

#include <vector>

#include "tessera/solver.h"

namespace tessera::solver {

/// The times at which the set of live nodes is largest and the limit could be exceeded, numbered;
/// node v is alive at [first[v], last[v]) of them.
struct Moments {
  int count = 0;
  std::vector<int> first, last;
};
Moments find_moments(const Problem& problem);

/// Bits by which costs are shifted: up by those that are spare, for what prices gain from
/// fractions; down where the largest sum of allowed costs would be more than kMostCost.
int shift_of(const Problem& problem);

/// The combinations that an edge allows, over its distinct nodes.
struct Rows {
  std::vector<int> nodes;
  std::vector<std::vector<int>> rows;  ///< a strategy of each of `nodes`
  std::vector<int64_t> costs;          ///< by row
};
Rows allowed_rows(const Problem& problem, const Edge& edge);

}  // namespace tessera::solver
