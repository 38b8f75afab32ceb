// Runs functions region by region: what the device can capture is recorded once and replayed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/graph_capture.h"
#include "runtime/step_runner.h"

namespace tessera {

class RegionRunner {
 public:
  /// `functions`: the bound steps of each function of rank.program. Outlives the runner.
  RegionRunner(RankContext& rank, StepRunner& steps,
               std::vector<std::vector<BoundStep>>& functions);
  /// Runs steps [first, last) of a function. A region lies inside of them or outside.
  void run(int function, size_t first, size_t last);

 private:
  struct Replay {
    int runs = 0;
    std::function<void()> launch;
    bool is_refused = false;  ///< the device, or that of another rank, did not record it
    std::string label = {};   ///< if a profiler shows ranges
  };
  bool replay(int function, size_t region);
  bool agree(bool recorded, const std::vector<BoundStep>& steps, const StepRange& range);

  RankContext& rank_;
  StepRunner& steps_;
  std::vector<std::vector<BoundStep>>& functions_;
  std::vector<std::vector<StepRange>> regions_;  ///< by function; none on the CPU
  std::vector<std::vector<Replay>> replays_;     ///< of each region
};

/// The number of the first step that stores parameters; that of all steps if none does.
size_t first_store(const Function& function);
/// The first of `steps` that waits for the device, and why; empty if none does.
std::string why_waits(const Device& device, const std::vector<BoundStep>& steps);

}  // namespace tessera
