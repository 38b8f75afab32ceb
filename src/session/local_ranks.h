// The executors of this process's ranks, which run and fail together.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/executor.h"
#include "tessera/cluster.h"

namespace tessera {

class LocalRanks {
 public:
  explicit LocalRanks(Cluster& cluster) : cluster_(cluster), executors_(cluster.local_ranks()) {}
  /// Waits until no device touches memory of another.
  ~LocalRanks();
  LocalRanks(const LocalRanks&) = delete;

  /// Calls make(rank, world) for every local rank, on the rank's own thread. Collective.
  void make(const std::function<std::unique_ptr<Executor>(int rank, Communicator& world)>& make);
  /// Calls work(executor) likewise. If that throws, no rank of this session runs again; those of
  /// others do, if all ranks are threads. `meanwhile`: as in ClusterInternals::run(). Collective.
  void on_all(const std::function<void(Executor&)>& work,
              const std::function<void()>& meanwhile = nullptr);
  /// Throws a usage error after a failure.
  void require_usable() const;
  /// Why the last run stopped before it stored anything, with the message of the rank, of all, that
  /// found the earliest reason. Collective.
  Executor::Stopped stopped();

  const std::vector<std::unique_ptr<Executor>>& executors() const { return executors_; }
  Executor& operator[](size_t rank) const { return *executors_[rank]; }
  size_t size() const { return executors_.size(); }
  bool on_host() const { return executors_[0]->device().is_host(); }

 private:
  Cluster& cluster_;
  std::vector<std::unique_ptr<Executor>> executors_;
  bool failed_ = false;
};

}  // namespace tessera
