// How a rank waits for its peers without taking the processor from them.
#pragma once

#include <sched.h>
#include <unistd.h>

#include <algorithm>

namespace tessera {

/// One turn of a wait that has lasted `waited` seconds: first yields, then sleeps for a fraction of
/// that time, at most 1 ms; earlier and longer if ranks share processors.
inline void wait_briefly(double waited, bool crowded) {
  constexpr double kLeast = 50e-6, kMost = 1e-3;
  if (waited < (crowded ? 200e-6 : 0.01)) {
    sched_yield();
  } else {
    usleep(static_cast<useconds_t>(1e6 * std::clamp(waited / (crowded ? 10 : 100), kLeast, kMost)));
  }
}

}  // namespace tessera
