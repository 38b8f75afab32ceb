// Time in which a process was stopped counts for no time-out.
#pragma once

#include <chrono>

namespace tessera {

/// Notices that the process was stopped (SIGSTOP, Ctrl-Z, a suspended machine) by gaps between
/// calls.
class Pauses {
 public:
  /// How long the process has been running, in seconds, without a gap of more than two seconds
  /// over `period` between two calls.
  double running(double period) {
    const Clock::time_point now = Clock::now();
    if (seconds(last_, now) > period + 2) since_ = now;
    last_ = now;
    return seconds(since_, now);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  }
  Clock::time_point since_ = Clock::now() - std::chrono::hours(24 * 365), last_ = Clock::now();
};

}  // namespace tessera
