// The time that a search has taken.
#pragma once

#include "base/clock.h"

namespace tessera {

class Stopwatch {
 public:
  /// Since this was made.
  double seconds() const { return host_seconds() - start_; }

 private:
  double start_ = host_seconds();
};

}  // namespace tessera
