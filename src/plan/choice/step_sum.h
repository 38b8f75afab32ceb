// The time of a Program that hides nothing, and what no schedule or fusion takes away of it.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cost/cost.h"

namespace tessera {

/// Mesh axes of a collective. Each set of axes has a communication lane.
using Lane = std::vector<int>;

/// What remains of a function's steps however they are fused and scheduled.
struct LeastTimes {
  double kernels = 0;  ///< of compute steps that no fusion takes away: matmuls and other kernels
  double beside = 0;   ///< of those that may run beside transfers of a chain
  /// Of collectives, without their starts, which members of a bucket share.
  std::vector<std::pair<Lane, double>> sent = {};
  double chain = 0;  ///< of collectives one of which waits for the other, with their starts

  void add(const Lane& lane, double seconds);
  void add(const LeastTimes& times, double weight);
};

/// How much a second of each kind counts.
struct StepWeights {
  double compute = 1, beside = 1, chain = 0;
  std::vector<std::pair<Lane, double>> lanes = {};  ///< 0 for lanes that are not here

  double of(const Lane& lane) const;
  double of(const LeastTimes& times) const;
};

/// Seconds of all compute steps and collectives of a function without loops, one after the other.
/// Copies do not count: whether a slice must be made contiguous depends on more than layouts.
double step_sum(const Function& function, const Costs& costs);

/// See LeastTimes. Pointwise steps and reductions do not count. `chain`: of all collectives; the
/// same seconds stand in `sent`.
LeastTimes least_times(const Function& function, const Costs& costs);

/// When something is done: before the loss is known, or after, or it may be either. A step whose
/// ops are not divided like that has one phase, before.
enum class Phase { before, after, either };
/// Something by phase.
template <typename T>
using ByPhase = std::array<T, 3>;

/// Where a value is computed.
struct Place {
  Phase phase = Phase::before;
  bool beside = false;  ///< perhaps while transfers of the chain are under way
};

/// Seconds, by phase, of the other compute steps of a function without loops, if each is shared out
/// evenly to `ranks` ranks, in whichever of these numbers of microbatches takes least. Steps that
/// read neither the result of a kernel nor of a step that does are left out. `place_of`: by name of
/// a value.
ByPhase<LeastTimes> shared_sum(const Program& program, const Function& function, const Costs& costs,
                               int64_t ranks, const std::vector<int64_t>& microbatches,
                               const std::function<Place(const std::string&)>& place_of);

/// Seconds of a collective without its start, which it may share with others of a bucket.
double sent_alone(const Costs& costs, CollectiveKind kind, double bytes, const Lane& lane);

}  // namespace tessera
