// Prices of steps on a machine.
#pragma once

#include <algorithm>
#include <functional>
#include <span>

#include "program/program.h"

namespace tessera {

/// Seconds of steps on a machine. Without a machine, passes follow rules that suit any.
struct StepPrices {
  std::function<double(const Step&)> seconds;  ///< of one step; empty: no machine
  double compute = 1, transfer = 1;            ///< slowdown of each while both run

  /// Seconds of collectives that start together: they share a start.
  double of_bucket(std::span<const Step> members) const {
    Step empty = members[0];
    empty.in[0].sizes = {0};
    empty.in[0].strides = {1};
    empty.out[0] = empty.in[0];
    empty.bytes = 0;
    const double start = seconds(empty);
    double sum = start;
    for (const Step& member : members) sum += std::max(0.0, seconds(member) - start);
    return sum;
  }
};

}  // namespace tessera
