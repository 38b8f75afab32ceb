// When the steps of runs began and ended, on every rank, on one time line.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace tessera {

class Cluster;

/// Records the runs of Sessions that are compiled with it (CompileOptions::trace). On a GPU a
/// recorded run is not replayed as a graph: its steps are launched one by one, between events.
class Trace {
 public:
  /// One step of one rank. A collective lasts from its start to the end of its wait.
  struct Event {
    int rank = 0;
    bool is_transfer = false;  ///< in the lane of transfers, else in that of compute
    std::string name, source;
    double begin = 0;  ///< seconds since 1970, by the clock of the rank's host
    double seconds = 0;
  };

  /// most_events: what comes later is only counted.
  explicit Trace(size_t most_events = 1000000);
  ~Trace();
  Trace(const Trace&) = delete;

  /// Of the local ranks, in no order. Any thread may call these two.
  std::vector<Event> events() const;
  void add(Event event);
  /// Writes the events of all ranks, as Chrome and Perfetto read them: a process is a rank, its
  /// threads are the lanes. Collective; the root process writes. Throws io errors there.
  void write(Cluster& cluster, const std::string& path) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
