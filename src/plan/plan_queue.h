// The queue of a best-first search.
#pragma once

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

#include "plan/candidates.h"

namespace tessera {

/// A candidate to price, or (is_open) an assignment that stands for all its candidates.
struct QueueEntry {
  Candidate candidate;
  bool is_open = false;
  bool is_seed = false;  ///< priced before all others
  double key = 0;        ///< the order of entries: the guess in seconds, corrected
  double bound = 0;      ///< lower bound in seconds
  double slowed = 0;     ///< seconds of it by which transfers slow compute down
  double guess = 0;      ///< estimated seconds
  double transient = 0;  ///< estimated bytes
  bool operator<(const QueueEntry& o) const {
    const auto order = [](const QueueEntry& e) {
      return std::tie(e.key, e.candidate.assignment, e.candidate.recompute_option,
                      e.candidate.microbatch_option, e.candidate.storage, e.candidate.schedule,
                      e.candidate.chunks, e.candidate.reduce_each);
    };
    return order(*this) > order(o);
  }
};

class PlanQueue {
 public:
  bool empty() const { return entries_.empty(); }
  void push(QueueEntry entry) { entries_.push(std::move(entry)); }
  /// Removes and returns the entry with the least key.
  QueueEntry pop() {
    QueueEntry entry = entries_.top();
    entries_.pop();
    return entry;
  }
  /// If the entry's key has risen to `key`, puts it back and returns true: another may be first
  /// now.
  bool push_back(QueueEntry& entry, double key) {
    if (key <= entry.key * (1 + 1e-9)) return false;
    entry.key = key;
    entries_.push(std::move(entry));
    return true;
  }
  /// The least of `most` and all entries' bounds, as given by `bound_of`.
  double least_bound(double most, const std::function<double(const QueueEntry&)>& bound_of) const {
    for (std::priority_queue<QueueEntry> left = entries_; !left.empty(); left.pop())
      most = std::min(most, bound_of(left.top()));
    return most;
  }

 private:
  std::priority_queue<QueueEntry> entries_;
};

}  // namespace tessera
