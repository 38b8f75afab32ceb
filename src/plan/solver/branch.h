// Bounds beyond those of prices: the problem is split in two, again and again, where prices for
// memory cannot decide.
#pragma once

#include <functional>
#include <memory>
#include <queue>
#include <vector>

#include "plan/solver/dual.h"

namespace tessera::solver {

/// Best first: the part with the least bound is split by the strategies of a node that hold little
/// memory and those that hold much. The least bound of all parts is one of the whole.
class Branching {
 public:
  /// Begins with an ascent that has come to rest.
  Branching(const Model& model, const DualAscent& root, int64_t bound);

  /// Splits one part. `below`: parts that cost as much or more are dropped. Choices on the way go
  /// to `offer`. False where nothing is left to split, or no memory for more.
  bool split(int64_t below, const std::function<void(const std::vector<int>&)>& offer);
  /// Of all parts but those dropped.
  int64_t bound() const { return bound_; }

 private:
  struct Part {
    int64_t bound = 0;
    std::shared_ptr<DualAscent> dual;
    bool operator<(const Part& o) const { return bound > o.bound; }
  };
  /// What the passes over a part chose, by node: the price of its memory at the time.
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
  std::priority_queue<Part> parts_;
  int64_t bound_ = 0, bytes_ = 0;
};

}  // namespace tessera::solver
