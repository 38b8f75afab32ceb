// The signals by which a batch system, a terminal or a user ends a job.
#pragma once

namespace tessera::cli {

/// Exit code of a job that saved because of a signal and should be started again: EX_TEMPFAIL.
inline constexpr int kRequeue = 75;
/// Exit code if a rank died, hung or disagreed, or a device failed: EX_PROTOCOL. A restart may
/// help.
inline constexpr int kRankFailed = 76;

/// While the object lives SIGTERM, SIGUSR1, SIGINT and SIGHUP are only recorded. Launchers send a
/// signal twice; a SIGTERM or SIGINT a second or more after the first one ends the process at once.
/// A SIGHUP that was ignored (nohup) stays ignored. At most one object per process.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  /// The first signal since construction, or 0.
  int seen() const;
};

/// "SIGTERM", "SIGUSR1", "SIGINT", "SIGHUP".
const char* signal_name(int number);

}  // namespace tessera::cli
