// The collectives of one rank: prepared once, started and awaited by steps, timed if profiled.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "collectives/communicator.h"
#include "runtime/rank_memory.h"

namespace tessera {

/// One run of a bucket on this rank.
struct BucketTimestamps {
  double start = 0;              ///< seconds that its start took
  double arrived = 0, left = 0;  ///< begin and end of its wait, in seconds of the steady clock
};

/// Collectives that start together and have one wait.
struct BoundBucket {
  static constexpr size_t kKept = 256;  ///< timestamps of the last runs
  std::unique_ptr<Operation> operation;
  std::span<const Step> steps;
  double started = 0, ended = 0;    ///< of the last run, if profiled; ended 0: not seen yet
  double hidden = 0;                ///< seconds of all runs
  int64_t runs = 0;                 ///< if profiled
  const int32_t* counts = nullptr;  ///< of rows (tessera/ragged.h), by rank; null: none
  int own = 0;                      ///< this rank's number among them
  int64_t row_bytes = 0;
  int64_t sent = 0;  ///< bytes of counted rows to other ranks, of all runs, if profiled
  std::vector<BucketTimestamps> timestamps = {};  ///< if profiled: a ring of the last kKept runs
  BucketTimestamps& now() { return timestamps[static_cast<size_t>(runs - 1) % kKept]; }
  int64_t kept() const { return std::min<int64_t>(runs, std::ssize(timestamps)); }
};

class CollectiveRunner {
 public:
  CollectiveRunner(const RankContext& rank, const RankMemory& memory, bool profile)
      : rank_(rank), memory_(memory), profile_(profile) {}

  /// Prepares the collectives `steps`, which start together. Collective over their axes.
  BoundBucket& bind(std::span<const Step> steps);
  void start(BoundBucket& bucket);
  void wait(BoundBucket& bucket);
  /// Waits for all that is in flight: where a run ends before its end, on all ranks alike.
  void finish();
  /// Lets what is in flight make progress: called after every kernel.
  void advance_all();

  /// Seconds of waits since the last reset_waited().
  double waited() const { return waited_; }
  void reset_waited() { waited_ = 0; }

  /// Of the bucket that begins with the collective `first`, of all runs, if profiled: seconds that
  /// it was in flight while steps computed.
  double hidden(const Step& first) const;
  /// Of a collective with counts, of all runs, if profiled: bytes of the rows that it sent.
  int64_t sent(const Step& first) const;
  /// Its last runs, as many on all ranks.
  std::vector<BucketTimestamps> timestamps(const Step& first) const;
  /// All of its runs, by the number of timestamps().
  double runs_per_timestamp(const Step& first) const;

 private:
  Communicator& group(const std::vector<int>& axes);
  Collective describe(const Step& step);

  const RankContext& rank_;
  const RankMemory& memory_;
  bool profile_;
  std::map<std::vector<int>, std::unique_ptr<Communicator>> groups_;
  std::deque<BoundBucket> buckets_;
  std::vector<BoundBucket*> in_flight_;
  double waited_ = 0;
};

}  // namespace tessera
