// Ends a job that hangs where nothing else can end it, and tells where it hangs.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "cli/stacks.h"
#include "tessera/cluster.h"

namespace tessera::cli {

/// A thread that looks at the ranks of this process and at the thread that made the object. If a
/// rank stays in one step, or that thread in one phase, for nearly the time-out, every rank's step,
/// source line and stack go to stderr, once. Then the waits of the library throw. If they do not,
/// because the only thread that could is the one that hangs, the process ends with kRankFailed.
/// At most one object per process.
class Watchdog {
 public:
  Watchdog(const Cluster& cluster, double timeout);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  /// The step of training that is under way, for the report.
  void note_step(int64_t step) { step_.store(step, std::memory_order_relaxed); }
  /// Ends the watch: an error is on its way out.
  void stop();

  /// While it lives, the thread that made the watchdog does `what`, which may not take longer than
  /// the time-out: "reading the data of step 7".
  class Phase {
   public:
    Phase(Watchdog& watchdog, const std::string& what) : watchdog_(watchdog) {
      watchdog_.set_phase(what);
    }
    ~Phase() { watchdog_.set_phase(""); }
    Phase(const Phase&) = delete;

   private:
    Watchdog& watchdog_;
  };

 private:
  using Clock = std::chrono::steady_clock;
  /// Who stays where, and for how long.
  struct Stall {
    std::string what;
    double seconds = 0;
  };
  void set_phase(const std::string& what);
  Stall longest() const;
  void watch();
  void tell(const Stall& stall);

  const Cluster& cluster_;
  const double timeout_;
  const int thread_;
  Stacks stacks_;
  std::atomic<int64_t> step_{0};  ///< 0: none
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string phase_;        ///< "": none
  Clock::time_point since_;  ///< the phase began
  bool stop_ = false;
  std::thread watcher_;
};

}  // namespace tessera::cli
