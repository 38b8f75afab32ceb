// How far ahead of its need an exchange starts, in terms of computing.
#pragma once

#include <vector>

#include "runtime/program.h"

namespace tessera {

/// What a step takes to compute, in operations; a byte that is read or written takes as long as
/// some. Only ratios count: the Program is for any machine.
double work_of(const Step& step);

/// An exchange in the order of a function's compute steps.
struct Sent {
  std::vector<int> axes;
  double bytes = 0;   ///< by one rank
  double needed = 0;  ///< work that is done before its result is needed
};

/// Of each exchange the work that is done before it should start, below zero where that is not
/// enough. The exchanges of one set of axes run one after the other, in order of need, and take all
/// of the function's `work` together, each its share by bytes: then they are done in time wherever
/// the links are fast enough, and no result lies about for longer.
std::vector<double> latest_starts(const std::vector<Sent>& exchanges, double work);

}  // namespace tessera
