// SIGTERM and SIGUSR1, by which a batch system announces the end of a job.
#pragma once

namespace tessera::cli {

/// Exit code of a job that saved because of a signal and should be started again: EX_TEMPFAIL.
inline constexpr int kRequeue = 75;
/// Exit code if a rank died, hung or disagreed, or a device failed: EX_PROTOCOL. A restart may
/// help.
inline constexpr int kRankFailed = 76;

/// While the object lives both signals are only recorded. At most one object per process.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  /// The first signal since construction, or 0.
  int seen() const;
};

/// "SIGTERM", "SIGUSR1".
const char* signal_name(int number);

}  // namespace tessera::cli
