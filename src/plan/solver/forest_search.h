// Good choices for graphs of any width, by exact improvement of some nodes at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "plan/solver/elimination.h"
#include "plan/solver/model.h"

namespace tessera::solver {

/// Holds a choice and improves it. A move picks nodes that form a forest, or a block of small
/// width, and makes the best choice for all of them at once, with the others fixed, at prices for
/// memory. It is kept if nothing gets worse. Deterministic.
class ForestSearch {
 public:
  ForestSearch(const Model& model, std::vector<int> start, uint64_t seed);

  /// Prices of memory as for priced_costs().
  void set_prices(const std::vector<int64_t>& prices);
  /// Makes one move; true if the value got better. With `slack`, the value may also get worse, up
  /// to that share above the best value so far, and costs are perturbed as much.
  bool move(double slack);
  const std::vector<int>& choice() const { return choice_; }
  const Value& value() const { return value_; }

 private:
  struct Branch {
    int node = -1, parent = -1;  // index in forest_ of the parent, or -1
    int pair = -1;               // to the parent
    std::vector<double> cost;    // least cost of all below, by strategy
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
  /// Takes next_ and returns true if it is at least as good as the present choice.
  bool accept();

  const Model& model_;
  std::vector<int> choice_, next_;
  Value value_;
  int64_t best_ = kWall;  // least cost of a feasible choice so far
  double slack_ = 0;
  std::vector<int64_t> use_;     // bytes by point
  std::vector<double> prices_;   // by point
  std::vector<double> extra_;    // on top of prices_, where moves went beyond the limit
  std::vector<int64_t> excess_;  // of the last move that was refused
  std::vector<int> picked_;      // nodes of the forest
  std::vector<int> place_;       // by node: in picked_, or -1
  std::vector<int> group_;       // by node: union-find
  std::vector<Branch> forest_;   // parents before children
  Model block_;                  // the nodes picked, if they are a block
  std::unique_ptr<Elimination> elimination_;  // of block_
  uint64_t state_;
};

}  // namespace tessera::solver
