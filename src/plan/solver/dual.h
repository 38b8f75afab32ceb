// Lower bounds for graphs of any width.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/solver/model.h"

namespace tessera::solver {

/// Dual ascent. The cost of every pair is divided, in any integers, between its table and its two
/// nodes. The bound is the sum of the least costs of all nodes and tables. Memory has prices
/// (Lagrange multipliers).
class DualAscent {
 public:
  explicit DualAscent(const Model& model);

  /// One pass over all nodes, alternately forwards and backwards. Sets choice(), and returns the
  /// bound at the present prices, base included.
  int64_t pass();
  /// Subgradient step: moves the prices along the excess bytes of the last choice, by `step` times
  /// the distance to `target`.
  void move_prices(double step, int64_t target);

  const std::vector<int>& choice() const { return choice_; }
  const std::vector<int64_t>& prices() const { return prices_; }
  void set_prices(std::vector<int64_t> prices);
  /// Forbids these strategies of a node.
  void bar(int node, const std::vector<bool>& strategies);
  bool is_barred(int node, int s) const { return !barred_[node].empty() && barred_[node][s]; }
  /// The price of the memory that a strategy holds.
  int64_t price_of(int node, int s) const;
  /// Node costs after the last pass, messages included: lower is better.
  std::vector<int64_t> potential(int node) const;

 private:
  std::vector<int64_t>& message_to(int e, int node) {
    return model_.pairs[e].a == node ? to_a_[e] : to_b_[e];
  }
  void send(int e, int from);
  void visit(int v);
  int64_t bound() const;
  const Model& model_;
  std::vector<std::vector<int64_t>> costs_;  // with prices of memory
  std::vector<std::vector<bool>> barred_;    // by node; empty: none
  std::vector<std::vector<int64_t>> to_a_, to_b_;
  std::vector<int64_t> prices_;
  std::vector<int> choice_;
  std::vector<bool> decided_;
  bool forwards_ = true;
  int64_t last_bound_ = 0;
};

}  // namespace tessera::solver
