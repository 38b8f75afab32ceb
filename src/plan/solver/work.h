// The graph of nodes and pairs that reduction works on.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "plan/solver/model.h"

namespace tessera::solver {

class WorkGraph {
 public:
  struct Work {
    std::vector<int64_t> cost;
    std::vector<Use> uses;
    std::vector<int> original;  // strategy of the problem
    std::map<int, int> pairs;   // by neighbour
    bool alive = true;
    int problem_size = 0;
    bool holds_memory() const { return !uses.empty(); }
  };

  static int64_t sum(int64_t a, int64_t b) { return a >= kWall || b >= kWall ? kWall : a + b; }

  int add_node(std::vector<int64_t> cost);
  /// Adds costs between two nodes; `table` is [a][b].
  void add_pair(int a, int b, const std::vector<int64_t>& table);
  void remove_pair(int e);
  /// The table as [v][other].
  std::vector<int64_t> oriented(int e, int v) const;
  void restrict_node(int v, const std::vector<bool>& keep);
  /// Drops forbidden strategies.
  void prune_node(int v);
  void add_use(int v, Use use);
  /// The next pair or node to visit; -1: none.
  int next_pair();
  int next_node();

  std::vector<Work> nodes;
  std::vector<Pair> pairs;
  std::string infeasible;  ///< why nothing is allowed, or ""

 private:
  void due_node(int v);
  void due_pair(int e);
  std::vector<bool> alive_, pair_is_due_, node_is_due_;
  std::deque<int> pairs_due_, nodes_due_;
};

}  // namespace tessera::solver
