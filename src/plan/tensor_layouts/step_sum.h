// The time of a Program that hides nothing, and what no schedule or fusion takes away of it.
#pragma once

#include <array>
#include <compare>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cost/cost.h"

namespace tessera {

/// Mesh axes of a collective. Each set of axes has a communication lane.
using Lane = std::vector<int>;

/// Links of a chain of ops each of which waits for the one before (StepOrder): from `first` to
/// before `last`.
struct Links {
  int first = 0, last = 0;
  auto operator<=>(const Links&) const = default;
};

/// What counts nothing is beside these.
inline constexpr Links kNothing{-1, 0};

/// What remains of steps however they are fused and scheduled.
struct LeastTimes {
  double kernels = 0;  ///< of compute steps that no fusion takes away: matmuls and other kernels
  /// Of collectives, without their starts, which members of a bucket share.
  std::vector<std::pair<Lane, double>> sent = {};
  double chain = 0;  ///< of collectives, with their starts, if they are a link of the chain

  void add(const Lane& lane, double seconds);
};

/// Sums of these, by where they lie.
struct PlacedTimes {
  std::map<Links, double> kernels = {};  ///< by the links beside whose transfers they may run
  std::vector<std::pair<Lane, double>> sent = {};
  std::map<int, double> chain = {};  ///< by link

  void add(const LeastTimes& times, Links beside, int link, double weight);
  void add(const PlacedTimes& times, double weight);
  double all_kernels() const;
};

/// How much a second of each kind counts.
struct StepWeights {
  double compute = 1;
  std::vector<double> beside = {}, chain = {};      ///< by link: compute beside it, its transfers
  std::vector<std::pair<Lane, double>> lanes = {};  ///< 0 for lanes that are not here

  double of(const Lane& lane) const;
  /// Of compute that may run beside these links.
  double of(Links beside) const;
  /// `link`: that the collectives are, or -1.
  double of(const LeastTimes& times, Links beside, int link) const;
  double of(const PlacedTimes& times) const;
};

/// Seconds of all compute steps and collectives of a function without loops, one after the other.
/// Copies do not count: whether a slice must be made contiguous depends on more than layouts.
double step_sum(const Function& function, const Costs& costs);

/// See LeastTimes. Pointwise steps and reductions do not count. All collectives are in `chain`,
/// too.
LeastTimes least_times(const Function& function, const Costs& costs);

/// When something is done: before the loss is known, or after, or it may be either. A step whose
/// ops are not divided like that has one phase, before.
enum class Phase { before, after, either };
/// Something by phase.
template <typename T>
using ByPhase = std::array<T, 3>;

/// When a value is computed.
struct Place {
  Phase phase = Phase::before;
  Links around = {};        ///< it is computed after those before and before those behind
  bool in_chain = false;    ///< then it is computed beside none of these
  bool near_alone = false;  ///< it may be beside links that stand alone, so it counts nothing

  Links beside() const {
    if (near_alone) return kNothing;
    return in_chain || around.first >= around.last ? Links() : around;
  }
};

/// Seconds, by phase, of the other compute steps of a function without loops, if each is shared out
/// evenly to `ranks` ranks, in whichever of these numbers of microbatches takes least. Steps that
/// read neither the result of a kernel nor of a step that does are left out. `place_of`: by name of
/// a value; of a step without one, what it reads and what reads it says. `anywhere`: if that says
/// nothing.
ByPhase<PlacedTimes> shared_sum(
    const Program& program, const Function& function, const Costs& costs, int64_t ranks,
    const std::vector<int64_t>& microbatches,
    const std::function<std::optional<Place>(const std::string&)>& place_of, Place anywhere = {});

/// Seconds of a collective without its start, which it may share with others of a bucket.
double sent_alone(const Costs& costs, CollectiveKind kind, double bytes, const Lane& lane);

}  // namespace tessera
