// Shrinks a problem without losing its optimum.
#pragma once

#include <string>
#include <vector>

#include "plan/solver/model.h"

namespace tessera::solver {

/// The smaller problem, and the way back.
class Reduction {
 public:
  /// Three rules. Drops strategies without an allowed partner. Folds a node into a neighbour whose
  /// every strategy allows only one of the node's. Eliminates nodes without memory that have at
  /// most two neighbours.
  explicit Reduction(const Problem& problem);

  const Model& model() const { return model_; }
  /// Why nothing is allowed; "" if something is.
  const std::string& infeasible() const { return infeasible_; }
  /// The problem's choice for a choice of the model.
  std::vector<int> expand(const std::vector<int>& choice) const;

 private:
  friend class Reducer;
  /// Node v gets table[strategy of a (* strategies of b) + strategy of b].
  struct Follows {
    int v = -1, a = -1, b = -1;
    int b_size = 1;
    std::vector<int> table;
  };
  Model model_;
  std::string infeasible_;
  std::vector<Follows> follows_;            // in the order of elimination
  std::vector<int> node_;                   // of the model: node of the problem
  std::vector<std::vector<int>> strategy_;  // of the model: strategy of the problem
  int problem_nodes_ = 0;                   // further nodes stand for edges
  int all_nodes_ = 0;
};

}  // namespace tessera::solver
