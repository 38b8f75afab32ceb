// Compares the predicted with the measured time of a training step.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tessera/machine.h"
#include "tessera/session.h"

namespace tessera::cli {

/// One kind of work: the kernels of an op, or the collectives over some axes. Seconds per step.
struct WorkTime {
  std::string name;
  double planned = 0, measured = 0;
};
/// "attention 8.10 ms instead of 4.00, ...": the work that is off by more than 10 % and by more
/// than 2 % of the step, largest first, at most four; "" if there is none.
std::string work_off_plan(std::vector<WorkTime> work, double step_seconds);

class Forecast {
 public:
  static constexpr int kWindow = 20;  ///< steps to average over

  Forecast() = default;
  /// Simulates the training step. Throws what simulate() throws.
  Forecast(const Graph& graph, const CompileOptions& options, const Machine& machine);
  double seconds() const { return seconds_; }  ///< predicted step time; 0: none

  /// Every kWindow steps (without the first step) returns a line if the mean is off by more than 10
  /// % and the line differs from the last one: how much it is off, and which work; else "". The
  /// session must be compiled with CompileOptions::profile. `slow`: the line about a slow rank, or
  /// "".
  std::string after_step(int64_t step, double seconds, const Session& session,
                         const std::string& slow);

 private:
  std::vector<WorkTime> work_of(const Session& session) const;

  double seconds_ = 0;
  std::map<std::string, double> compute_;  ///< by kernel
  std::map<std::string, double> exposed_;  ///< by axes
  double sum_ = 0;
  int steps_ = -1;
  std::string said_;
};

}  // namespace tessera::cli
