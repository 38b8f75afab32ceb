// How early a bucket must start so that computing hides it.
#pragma once

#include <vector>

#include "program/program.h"

namespace tessera {

/// The work of a step in operations, where a byte read or written counts as several. Only ratios
/// matter: no machine is known here.
double work_of(const Step& step);

/// A bucket among a function's compute steps.
struct Sent {
  std::vector<int> axes;
  double bytes = 0;   ///< sent by one rank
  double needed = 0;  ///< work of the steps before the first use of its result
  double takes = 0;   ///< as long as so much work, if that is known
};

/// For each bucket, the work of the steps before its latest start; negative if even the beginning
/// is too late. Buckets over one set of axes run one after the other, in the order in which they
/// are needed.
std::vector<double> latest_starts(const std::vector<Sent>& buckets);

/// The same if it is not known how long buckets take. All of them together are assumed to take as
/// long as the function's `work`, each in proportion to its bytes. So they finish in time wherever
/// the links are fast enough, and no result is alive longer than needed.
std::vector<double> start_deadlines(std::vector<Sent> buckets, double work);

}  // namespace tessera
