// Time as the command line measures it.
#pragma once

#include <chrono>

namespace tessera::cli {

using Clock = std::chrono::steady_clock;
inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace tessera::cli
