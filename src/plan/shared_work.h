// Work that no layout takes away: the steps of a model that are no kernels.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cost/cost.h"
#include "tessera/plan.h"

namespace tessera {

/// The step's first function, lowered for one rank and fused as that may be, a row of any length in
/// one kernel: a rank may have a part of it.
Program on_one_rank(const PlanStep& step, const PlanModel& model);

/// Seconds of pointwise steps and reductions, if all ranks have equal shares of them, with a margin
/// for what fusion makes of them elsewhere. No plan takes less: its fullest rank has no less.
class SharedWork {
 public:
  /// No work.
  SharedWork() = default;
  /// `two`: with two layers. `layers`: of the whole model; 1 if `two` equals `one`.
  /// `microbatches`: all numbers there may be. Keeps a reference to the machine.
  SharedWork(Program one, Program two, int64_t layers, std::vector<int64_t> microbatches,
             const Machine& machine);

  double seconds(int64_t ranks) const;

 private:
  double of(const Program& program, int64_t ranks) const;

  std::vector<Program> programs_;  ///< with one and two layers
  int64_t layers_ = 1;
  std::vector<int64_t> microbatches_;
  const Machine* machine_ = nullptr;
  mutable std::map<int64_t, double> known_;  ///< by ranks
};

}  // namespace tessera
