// The clock of all measurements: monotonic, and the same for all processes of a host.
#pragma once

#include <chrono>

namespace tessera {

/// Seconds since an arbitrary start.
inline double host_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace tessera
