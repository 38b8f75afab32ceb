// Local search for graphs of any width: many nodes are improved exactly at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "plan/solver/elimination.h"
#include "plan/solver/model.h"

namespace tessera::solver {

/// Holds a choice and improves it. A move picks nodes that form a forest, or a block of small
/// width, and finds the best choice for all of them with the other nodes fixed, at given prices of
/// memory. The move is kept if nothing gets worse. Deterministic.
class ForestSearch {
 public:
  ForestSearch(const Model& model, std::vector<int> start, uint64_t seed);

  /// Prices of memory as for priced_costs().
  void set_prices(const std::vector<int64_t>& prices);
  /// Makes one move; true if the value improved. With `slack` costs are perturbed, and the value
  /// may get worse, up to that share above the best value so far.
  bool move(double slack);
  const std::vector<int>& choice() const { return choice_; }
  const Value& value() const { return value_; }

 private:
  struct Branch {
    int node = -1, parent = -1;  // parent: index in forest_, or -1
    int pair = -1;               // to the parent
    std::vector<double> cost;    // by strategy: least cost of this node and all below
  };
  uint64_t random();
  void grow(size_t size, bool block);
  bool try_add(int v, bool block);
  /// Drops nodes from a block until it is narrow.
  void thin_block();
  void solve_block();
  int root_of(int v);
  void order_forest();
  void price(const std::vector<double>& before);
  void solve();
  /// Takes next_ and returns true if it is good enough; see move().
  bool accept();

  const Model& model_;
  std::vector<int> choice_, next_;
  Value value_;
  int64_t best_ = kWall;  // least cost of a feasible choice so far
  double slack_ = 0;
  std::vector<int64_t> use_;                  // bytes by point
  std::vector<double> prices_;                // by point
  std::vector<double> extra_;                 // added to prices_ where moves exceeded the limit
  std::vector<int64_t> excess_;               // by point, of the last move
  std::vector<int> picked_;                   // nodes of the present move
  std::vector<int> place_;                    // by node: in picked_, or -1
  std::vector<int> group_;                    // by node: union-find parent
  std::vector<Branch> forest_;                // parents before children
  Model block_;                               // the picked nodes, if they are a block
  std::unique_ptr<Elimination> elimination_;  // of block_
  uint64_t state_;
};

}  // namespace tessera::solver
