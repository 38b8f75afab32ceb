// The solver's form of a problem: pairs only, scaled costs, numbered points in time.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/solver.h"

namespace tessera::solver {

/// The scaled cost of what is forbidden. All allowed costs together are less than kMostCost.
inline constexpr int64_t kWall = int64_t{1} << 56;
inline constexpr int64_t kMostCost = kWall / 4;

/// Memory that a node holds during the points [first, last).
struct Use {
  int first = 0, last = 0;
  std::vector<int64_t> usage;  ///< by strategy
};

/// Costs between two nodes.
struct Pair {
  int a = 0, b = 0;
  std::vector<int64_t> cost;  ///< row-major, size[a] x size[b]
};

struct Model {
  /// Costs are the problem's times 2^shift, each rounded down; so a bound of the model is a bound
  /// of the problem. Negative if the problem's costs add up to more than kMostCost.
  int shift = 0;
  int64_t base = 0;               ///< scaled cost of what is already decided
  int64_t limit = 1;              ///< memory limit of the problem in bytes; the unit of prices
  int points = 0;                 ///< 0: memory cannot bind
  std::vector<int64_t> capacity;  ///< by point: bytes that the nodes may use; may be negative
  std::vector<std::vector<int64_t>> cost;  ///< by node and strategy
  std::vector<std::vector<Use>> uses;      ///< by node
  std::vector<Pair> pairs;                 ///< at most one per two nodes
  std::vector<std::vector<int>> incident;  ///< pairs of each node

  int nodes() const { return static_cast<int>(cost.size()); }
  int size(int node) const { return static_cast<int>(cost[node].size()); }
};

/// Adds the bytes that strategy `s` of a node uses, times `sign`, to a difference array over points
/// (points + 1 entries).
inline void add_use(const Model& model, int node, int s, int64_t sign,
                    std::vector<int64_t>& differences) {
  for (const Use& use : model.uses[node]) {
    differences[use.first] += sign * use.usage[s];
    differences[use.last] -= sign * use.usage[s];
  }
}

/// Scaled cost of a choice (base included), and by how much it breaks the rules.
struct Value {
  int64_t cost = 0;
  int forbidden = 0;
  int64_t excess = 0;  ///< sum over points of the bytes beyond the limit
  bool feasible() const { return forbidden == 0 && excess == 0; }
  bool better_than(const Value& o) const {
    if (forbidden != o.forbidden) return forbidden < o.forbidden;
    if (excess != o.excess) return excess < o.excess;
    return cost < o.cost;
  }
};
Value value_of(const Model& model, const std::vector<int>& choice);

/// Node costs plus the price of the memory that each strategy holds, rounded down. `prices`: by
/// point, the scaled cost of holding `limit` bytes; at most kMostCost. base + (least total of these
/// costs) - price_of_capacity() is a lower bound of the model's optimum.
std::vector<std::vector<int64_t>> priced_costs(const Model& model,
                                               const std::vector<int64_t>& prices);
/// The price of all points' capacity, rounded up.
int64_t price_of_capacity(const Model& model, const std::vector<int64_t>& prices);

/// Drops the points at which memory cannot bind before it binds at another one.
void compress_moments(Model& model);

}  // namespace tessera::solver
