// A model played on a described machine: when each step runs, and how long a step of training
// takes.
#pragma once

#include <string>
#include <vector>

#include "tessera/compile_options.h"
#include "tessera/machine.h"
#include "tessera/plan.h"

namespace tessera {

struct SimulateOptions {
  std::string function = "train";
  /// Standard deviation of a rank's time for the same work, as a share: all wait for the slowest.
  double stragglers = 0;
  /// Mean hours until one device fails; 0: never. A failure costs what was done since the last
  /// checkpoint, and `restart_seconds`; checkpoints are as far apart as costs least (Daly 2006).
  double failure_hours = 0;
  double checkpoint_seconds = 30, restart_seconds = 300;
};

/// One step of the Program as it was played.
struct SimulatedStep {
  std::string name, kernel, source, axes;  ///< axes: "" for a compute step
  double begin = 0, seconds = 0;           ///< lanes share the device, so more than undisturbed
  double exposed = 0;                      ///< of a collective: what computing waited for it
  int64_t flops = 0, bytes = 0;            ///< bytes: of a collective, sent by a rank
  int lane = 0;                            ///< 0 computes
  int stage = 0;                           ///< of a pipeline
};

struct SimulatedAxes {
  std::string axes;
  int64_t bytes = 0;
  double seconds = 0, exposed = 0;
};

/// All ranks of a stage do the same on slices of one size, so one of them stands for all.
struct Simulation {
  std::string machine;
  int64_t ranks = 1;
  double seconds = 0;  ///< compute + slowed + exposed + bubble, of the slowest stage
  double compute = 0, slowed = 0, exposed = 0;
  double with_stragglers = 0;   ///< of the slowest of `ranks`
  double goodput = 1;           ///< share of time that is neither lost, repeated nor checkpointing
  double checkpoint_every = 0;  ///< seconds; 0 without failures
  int64_t memory = 0;           ///< bytes on a rank
  std::vector<SimulatedAxes> by_axes;
  std::vector<SimulatedStep> steps;  ///< in order of begin; of a pipeline: microbatches
  int64_t stages = 1, chunks = 1, microbatches = 1;  ///< of a pipeline
  double bubble = 0;    ///< seconds in which the slowest stage has nothing to do
  double transfer = 0;  ///< of a microbatch from a stage to the next
  int64_t handed = 0;   ///< bytes of it, of a rank
};

/// Lowers and plays. Throws what explain() throws, and a usage error for a function that is not.
Simulation simulate(const Graph& graph, const CompileOptions& options, const Machine& machine,
                    const SimulateOptions& how = {});
/// The same of a model whose layers are dealt to stages, `chunks` of them each (several:
/// interleaved 1F1B, else 1F1B), through which `build.microbatches` pass. `mesh` is that of a
/// stage. Throws what price_pipeline() throws.
Simulation simulate_pipeline(const PlanModel& model, const Mesh& mesh, const Layout& layout,
                             const PlanBuild& build, int64_t stages, int64_t chunks,
                             const Machine& machine, const SimulateOptions& how = {});
/// As a time line for Perfetto or chrome://tracing: JSON.
std::string to_trace(const Simulation& simulation);

}  // namespace tessera
