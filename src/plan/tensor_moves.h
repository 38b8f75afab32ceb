// Layouts of single tensors, changed one by one.
#pragma once

#include <string>
#include <vector>

#include "plan/found_plans.h"
#include "plan/memory_limit.h"
#include "plan/optimum_rules.h"

namespace tessera {

/// A tensor of a graph, and the layouts that it may have.
struct MovableTensor {
  int value = -1;
  std::vector<TensorLayout> layouts;
};

/// Makes the best plan faster by scoped rules for single tensors, each plan lowered and played.
class TensorMoves {
 public:
  /// Keeps references.
  TensorMoves(const Graph& graph, CandidatePricer& pricer, const MemoryLimit& memory,
              FoundPlans& found, const Stopwatch& clock)
      : graph_(graph), pricer_(pricer), memory_(memory), found_(found), clock_(clock) {}

  /// Gives one tensor after the other, in this order, the layout that makes the best plan fastest,
  /// as long as one does. `scale`: see CandidatePricer::price_scaled().
  void move(const std::vector<MovableTensor>& tensors, double scale, double until);
  /// Leaves out the scoped rules of the best plan without which it is no slower.
  void drop_rules(double scale, double until);

 private:
  bool move(const MovableTensor& tensor, double scale, double until);

  const Graph& graph_;
  CandidatePricer& pricer_;
  const MemoryLimit& memory_;
  FoundPlans& found_;
  const Stopwatch& clock_;
};

}  // namespace tessera
