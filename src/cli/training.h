// What the files of `tessera train` share.
#pragma once

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/forecast.h"
#include "cli/progress.h"
#include "cli/replica_check.h"
#include "cli/signals.h"
#include "cli/stragglers.h"
#include "cli/watch.h"
#include "tessera/checkpoint.h"
#include "tessera/trace.h"

namespace tessera::cli {

using Clock = std::chrono::steady_clock;
inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Training {
  const Arguments& args;
  Watch watch;
  Job job;
  Cluster cluster;
  nlohmann::json& startup;  ///< seconds of each phase of the start
  ReplicaCheck replicas;
  StopSignals signals = {};
  Trainer trainer = {};
  CompileOptions compile = {};
  std::unique_ptr<DataSource> source = {};
  std::string data_fingerprint = {};  ///< of `source`
  std::unique_ptr<Batcher> batcher = {};
  std::unique_ptr<Evaluator> evaluator = {};
  std::unique_ptr<Trace> trace = {};
  std::unique_ptr<Session> session = {};
  std::unique_ptr<Checkpoints> checkpoints = {};
  std::unique_ptr<Progress> progress = {};
  Stragglers stragglers = {};
  Forecast forecast = {};  ///< of the root, where a machine is known
  std::vector<std::string> hosts = {};
  int64_t first_step = 0;
  int64_t skipped = 0, skipped_in_a_row = 0;  ///< steps with a gradient that was not finite
};

/// FLOP/s of matmuls on the cores that the ranks of this cluster share: what the log's
/// share of the peak refers to. One rank of each host measures, the others wait. `threads`: of a
/// rank; 0: the cores over the ranks. Collective.
double measured_gemm_peak(Cluster& cluster, const std::vector<std::string>& hosts, int threads);

/// The newest checkpoint if the job goes on from it. Before anything is written. Throws usage
/// errors: a directory of another run, or of another job (which keys or data differ).
std::optional<Checkpoint> open_checkpoints(Training& t);
/// Loads it.
void resume(Training& t, const std::optional<Checkpoint>& latest);
/// Memory that saving takes beside the run, on the ranks of this process; 0 without checkpoints.
int64_t staging_bytes(Training& t);
/// Starts to save, or waits for it to end too.
void start_save(Training& t, int64_t step);
void finish_save(Training& t);
/// Gives a save that is under way a few seconds to end, before an error ends the job. Local.
void settle_save(Training& t);

}  // namespace tessera::cli
