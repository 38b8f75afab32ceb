// A timeline of the steps of all runs on all ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace tessera {

class Cluster;

/// Records the runs of Sessions that are compiled with it (CompileOptions::trace). On a GPU a
/// recorded run does not replay CUDA graphs: steps are launched one by one, between events.
class Trace {
 public:
  /// One step of one rank. A collective lasts from its start to the end of its wait.
  struct Event {
    int rank = 0;
    bool is_transfer = false;  ///< on a communication lane, else on the compute lane
    std::string name, source;
    double begin = 0;  ///< seconds since 1970, by the clock of the rank's host
    double seconds = 0;
  };

  /// Further events than `most_events` are only counted.
  explicit Trace(size_t most_events = 1000000);
  ~Trace();
  Trace(const Trace&) = delete;

  /// events(): those of the local ranks, in no particular order. Both may be called by any thread.
  std::vector<Event> events() const;
  void add(Event event);
  /// Writes the events of all ranks for Chrome or Perfetto: a process per rank, a thread per lane.
  /// Collective; the root process writes. Throws io errors there.
  void write(Cluster& cluster, const std::string& path) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
