// What Sessions need of their Cluster beyond its public API.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "runtime/activity.h"
#include "tessera/cluster.h"
#include "tessera/error.h"

namespace tessera {

/// Work was refused before any rank began it: the Cluster and its Sessions are as they were.
struct NotRun : Error {
  explicit NotRun(const std::string& message) : Error(ErrorKind::usage, message) {}
};

struct ClusterInternals {
  /// Throws NotRun for a Cluster that was moved from.
  static Cluster::State& state(const Cluster& cluster);
  /// Cluster::run(). `meanwhile`, if any, is called some times a second by this thread while it
  /// waits for ranks that are threads.
  static void run(Cluster& cluster, const std::function<void(int, Communicator&)>& work,
                  const std::function<void()>& meanwhile);
  /// Where a local rank notes its steps.
  static RankActivity& activity(Cluster& cluster, int local_rank);
  /// Whether a rank's thread was abandoned, which may use what its Session owns, or is not here.
  static bool has_abandoned(const Cluster& cluster);
  /// Throws a CommonFailure: all processes throw it alike, so none has to be told.
  [[noreturn]] static void fail_alike(Cluster& cluster, ErrorKind kind, const std::string& message,
                                      ErrorCode code = ErrorCode::none);
};

/// While one lives, its thread alone runs work on a Cluster and its Sessions. It may nest.
class ClusterTurn {
 public:
  /// Throws NotRun while another thread has its turn, in a fork, and for one that was moved from.
  explicit ClusterTurn(const Cluster& cluster);
  /// The same without an error; see is_ours(). `caller`: the thread that has its turn, if any.
  explicit ClusterTurn(std::atomic<std::thread::id>& caller);
  ~ClusterTurn();
  ClusterTurn(const ClusterTurn&) = delete;

  /// False while another thread has its turn.
  bool is_ours() const { return is_ours_; }

 private:
  std::atomic<std::thread::id>& caller_;
  bool is_taken_ = false, is_ours_ = false;
};

}  // namespace tessera
