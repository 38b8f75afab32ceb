// Prices of steps on a machine.
#pragma once

#include <functional>

#include "program/program.h"

namespace tessera {

/// Seconds of steps on a machine. Without a machine, passes follow rules that suit any.
struct StepPrices {
  std::function<double(const Step&)> seconds;  ///< of one step; empty: no machine
  double compute = 1, transfer = 1;            ///< slowdown of each while both run
};

}  // namespace tessera
