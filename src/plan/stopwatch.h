// Wall time of a search.
#pragma once

#include "base/clock.h"

namespace tessera {

/// When each part of a search ends, as shares of the time that was asked: best first; then plans
/// with scoped rules; plans lowered whole; layouts of single tensors, and the report.
inline constexpr double kSearchEnds = 0.75, kScopesEnd = 0.85, kWholeEnds = 0.95;

class Stopwatch {
 public:
  /// Seconds since construction.
  double seconds() const { return host_seconds() - start_; }

 private:
  double start_ = host_seconds();
};

}  // namespace tessera
