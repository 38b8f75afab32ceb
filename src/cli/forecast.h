// What a step of training should take on the machine it runs on, beside what it takes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tessera/machine.h"
#include "tessera/session.h"

namespace tessera::cli {

/// One kind of work: the kernels of an op, or the collectives over some axes. Seconds of a step.
struct WorkTime {
  std::string name;
  double planned = 0, measured = 0;
};
/// "attention 8.10 ms instead of 4.00, ...": the work that is more than 10 % off and by more than
/// 2 % of the step, most first, at most four; "" if none is.
std::string work_off_plan(std::vector<WorkTime> work, double step_seconds);

class Forecast {
 public:
  static constexpr int kWindow = 20;  ///< steps that a mean is taken of

  Forecast() = default;
  /// Simulates the training step. Throws what simulate() throws.
  Forecast(const Graph& graph, const CompileOptions& options, const Machine& machine);
  double seconds() const { return seconds_; }  ///< of a step; 0: nothing is planned

  /// Every kWindow steps (the first is left out) returns a line if their mean is more than 10 % off
  /// and that, or what is off most, has not been said: by how much, and what is off; else "". The
  /// session was compiled with CompileOptions::profile. `slow`: what is said of a rank that is
  /// slower than the others, or "".
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
