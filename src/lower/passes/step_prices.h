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

  /// Seconds of a collective like this one that moves `bytes`; 0: of its start.
  double of_bytes(Step like, int64_t bytes) const {
    View& view = like.in[0];
    view.dtype = DType::uint8;
    view.sizes = {bytes};
    view.strides = {1};
    like.out[0] = view;
    like.bytes = bytes;
    return seconds(like);
  }

  /// Seconds of collectives that start together: they share a start.
  double of_bucket(std::span<const Step> members) const {
    const double start = of_bytes(members[0], 0);
    double sum = start;
    for (const Step& member : members) sum += std::max(0.0, seconds(member) - start);
    return sum;
  }
};

}  // namespace tessera
