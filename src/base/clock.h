// The clock that everything is measured with: it only goes forward, and all processes of a host
// have the same.
#pragma once

#include <chrono>

namespace tessera {

/// Seconds since some moment of the host's.
inline double host_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace tessera
