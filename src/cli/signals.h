// SIGTERM and SIGUSR1, by which a batch system says that a job is about to be ended.
#pragma once

namespace tessera::cli {

/// The exit code of a job that saved because of a signal and is to be started again: EX_TEMPFAIL.
inline constexpr int kRequeue = 75;
/// The exit code where a rank died, hung or disagreed, or a device failed: EX_PROTOCOL. A restart
/// may help.
inline constexpr int kRankFailed = 76;

/// While the object lives both signals are only noted. One at a time in a process.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  /// The first signal since then, or 0.
  int seen() const;
};

/// "SIGTERM", "SIGUSR1".
const char* signal_name(int number);

}  // namespace tessera::cli
