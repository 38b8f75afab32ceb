// How long before its result is needed a bucket must start, in terms of computing.
#pragma once

#include <vector>

#include "program/program.h"

namespace tessera {

/// The work of a step, in operations; a byte read or written counts as several. Only ratios matter,
/// because the Program is for any machine.
double work_of(const Step& step);

/// A bucket among a function's compute steps.
struct Sent {
  std::vector<int> axes;
  double bytes = 0;   ///< by one rank
  double needed = 0;  ///< work of the steps before its result is needed
};

/// For each bucket, the work of the steps before it should start; negative if even the beginning is
/// too late. The buckets of one set of axes run one after the other, in the order in which they are
/// needed. Together they take all of the function's `work`, each its share by bytes. Then they
/// finish in time wherever the links are fast enough, and no result is alive for longer than that
/// takes.
std::vector<double> start_deadlines(const std::vector<Sent>& buckets, double work);

}  // namespace tessera
