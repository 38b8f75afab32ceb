// Simulates a model on a described machine: when each step of the Program runs, and how long a
// training step takes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/compile_options.h"
#include "tessera/explain.h"
#include "tessera/machine.h"
#include "tessera/plan.h"

namespace tessera {

struct SimulateOptions {
  std::string function = "train";
  /// Relative standard deviation of a rank's compute time. All ranks wait for the slowest.
  double stragglers = 0;
  /// Mean hours between failures of one device; 0: no failures. A failure costs the work since the
  /// last checkpoint and `restart_seconds`. The checkpoint interval is the optimal one (Daly 2006).
  double failure_hours = 0;
  double checkpoint_seconds = 30, restart_seconds = 300;
};

/// What a span of a pipeline's stage is; `program` for a step of a Program. together: what all
/// stages do at once for a microbatch, as the embedding, the head and the loss. update: what runs
/// once a step. weights: gradients of parameters, where a schedule has them apart from backward.
enum class SimulatedPhase : uint8_t {
  program,
  forward,
  backward,
  hand_over,
  update,
  together,
  weights
};

/// One simulated step of the Program.
struct SimulatedStep {
  std::string name, kernel, source, axes;  ///< axes: "" for a compute step
  double begin = 0, seconds = 0;           ///< longer than alone if lanes share the device
  double exposed = 0;                      ///< of a collective: not overlapped with compute
  int more = 0;                            ///< collectives of its bucket, besides this tensor's
  int64_t flops = 0, bytes = 0;            ///< bytes: sent by a rank in a collective
  std::string rule;                        ///< of a collective: the layout rule that requires it
  int lane = 0;                            ///< 0: compute
  int stage = 0;                           ///< pipeline stage
  SimulatedPhase phase = SimulatedPhase::program;
};

/// A stage in a tick of a pipeline that a layout's rule makes. microbatch: -1 for what all stages
/// do.
struct StageTick {
  int64_t stage = 0, microbatch = 0;
  SimulatedPhase phase = SimulatedPhase::forward;
  double begin = 0, seconds = 0;
};

struct SimulatedAxes {
  std::string axes;
  int64_t bytes = 0;
  double seconds = 0, exposed = 0;
};

/// All ranks of a stage do the same work on slices of one size, so one rank of each is simulated.
/// `steps` are those of the first stage.
struct Simulation {
  std::string machine;
  int64_t ranks = 1;
  double seconds = 0;  ///< compute + slowed + exposed + bubble, of the slowest stage
  double compute = 0, slowed = 0, exposed = 0;
  double with_stragglers = 0;   ///< seconds if the slowest of `ranks` decides
  double goodput = 1;           ///< fraction of time that is not lost, repeated or checkpointing
  double checkpoint_every = 0;  ///< seconds; 0 without failures
  int64_t memory = 0;           ///< bytes per rank
  std::vector<SimulatedAxes> by_axes;
  std::vector<SimulatedStep> steps;                  ///< by begin; for a pipeline: microbatches
  int64_t stages = 1, chunks = 1, microbatches = 1;  ///< of a pipeline
  std::string schedule = "1f1b";                     ///< the same; with chunks: "interleaved"
  double bubble = 0;                                 ///< seconds in which a stage is idle
  double transfer = 0;  ///< seconds to send a microbatch to the next stage
  int64_t handed = 0;   ///< bytes of that transfer, per rank
  /// Of a Program whose layers are divided: what its stages do, and their ticks.
  std::vector<StageTick> stage_ticks;
  std::vector<PipelineReport> pipelines;
};

/// Lowers and simulates. Throws as explain(), and a usage error for an unknown function.
Simulation simulate(const Graph& graph, const CompileOptions& options, const Machine& machine,
                    const SimulateOptions& how = {});
/// The same for a pipeline: the layers are divided into `stages` stages of `chunks` chunks each
/// (more than one: interleaved 1F1B, else 1F1B), and build.microbatches microbatches pass through.
/// `mesh` is the mesh of one stage. Throws as price_pipeline().
Simulation simulate_pipeline(const PlanModel& model, const Mesh& mesh, const Layout& layout,
                             const PlanBuild& build, int64_t stages, int64_t chunks,
                             const Machine& machine, const SimulateOptions& how = {});
/// A timeline for Perfetto or chrome://tracing, as JSON.
std::string to_trace(const Simulation& simulation);

}  // namespace tessera
