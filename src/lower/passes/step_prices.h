// What passes ask of a machine.
#pragma once

#include <functional>

#include "program/program.h"

namespace tessera {

/// The seconds of steps on a machine. Without a machine, passes follow rules that suit any.
struct StepPrices {
  std::function<double(const Step&)> seconds;  ///< of one step; empty: no machine
  double compute = 1, transfer = 1;            ///< slowdown while the other kind runs too
};

}  // namespace tessera
