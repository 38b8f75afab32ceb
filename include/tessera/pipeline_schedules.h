// The schedules of a pipeline: in which order its stages take the microbatches of a step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// A schedule of rules like `layers:pipe`. Results do not depend on it, but for rounding.
struct PipelineSchedule {
  std::string name;         ///< "1f1b": CompileOptions::pipeline_schedule
  std::string description;  ///< a clause: "all of them forward, then backward"
  /// The chunks of layers that a stage has (`layers:pipe*2` for two).
  int64_t least_chunks = 1, most_chunks = 1;
  /// The gradients of parameters are computed later than those of inputs, where a stage would wait.
  bool splits_backward = false;
  /// The planner tries it. False for another name of one that it tries.
  bool is_planned = true;
};

/// All of them; the default comes first.
const std::vector<PipelineSchedule>& pipeline_schedules();
/// Throws a usage error with the nearest name.
const PipelineSchedule& pipeline_schedule(const std::string& name);
/// True if a stage may have so many chunks.
bool takes_chunks(const PipelineSchedule& schedule, int64_t chunks);

}  // namespace tessera
