// Wall time of a search.
#pragma once

#include "base/clock.h"

namespace tessera {

class Stopwatch {
 public:
  /// Seconds since construction.
  double seconds() const { return host_seconds() - start_; }

 private:
  double start_ = host_seconds();
};

}  // namespace tessera
