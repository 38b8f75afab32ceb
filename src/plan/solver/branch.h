// Branch and bound, for better bounds than dual ascent gives.
#pragma once

#include <functional>
#include <memory>
#include <queue>
#include <vector>

#include "plan/solver/dual.h"

namespace tessera::solver {

/// Best first: the subproblem with the least bound is split in two. One half keeps those strategies
/// of a node that hold little memory, the other those that hold much. The least bound of all
/// subproblems is a bound of the whole problem.
class Branching {
 public:
  /// Begins with the root's dual ascent, which has converged to `bound`.
  Branching(const Model& model, const DualAscent& root, int64_t bound);

  /// Splits one subproblem. Subproblems whose bound is not below `below` are dropped. `offer` gets
  /// the choices found. Returns false if nothing is left to split, or no memory for more
  /// subproblems.
  bool split(int64_t below, const std::function<void(const std::vector<int>&)>& offer);
  /// The least bound of all subproblems that were not dropped.
  int64_t bound() const { return bound_; }

 private:
  struct Subproblem {
    int64_t bound = 0;
    std::shared_ptr<DualAscent> dual;
    bool operator<(const Subproblem& o) const { return bound > o.bound; }
  };
  /// By node: the sum over passes of the price of the chosen strategy's memory, and of its square.
  struct Chosen {
    std::vector<double> sum, squares;
    int passes = 0;
  };
  int64_t raise(DualAscent& dual, int64_t below, Chosen& chosen,
                const std::function<void(const std::vector<int>&)>& offer);
  bool choose(const DualAscent& dual, const Chosen& chosen, int& node,
              std::vector<bool>& much) const;
  bool choose_nearest(const DualAscent& dual, int& node, std::vector<bool>& much) const;

  const Model& model_;
  std::priority_queue<Subproblem> open_;
  int64_t bound_ = 0, bytes_ = 0;
};

}  // namespace tessera::solver
