// State and functions shared by the files of `tessera train`.
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
  nlohmann::json& startup;  ///< seconds of each startup phase
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
  Forecast forecast = {};  ///< in the root, if a machine profile is known
  std::vector<std::string> hosts = {};
  int64_t first_step = 0;
  int64_t skipped = 0, skipped_in_a_row = 0;  ///< steps with a non-finite gradient
};

/// Measured FLOP/s of matmuls on all cores that the ranks of this cluster share; the log's
/// peak_share refers to it. One rank of each host measures, the others wait. `threads`: per rank;
/// 0: the cores divided by the ranks. Collective.
double measured_gemm_peak(Cluster& cluster, const std::vector<std::string>& hosts, int threads);

/// The newest checkpoint if the job continues from it. Called before anything is written. Throws
/// usage errors for a directory of another run or job (naming the keys or data that differ).
std::optional<Checkpoint> open_checkpoints(Training& t);
/// Loads the checkpoint.
void resume(Training& t, const std::optional<Checkpoint>& latest);
/// Memory used by a save in the background, for the ranks of this process; 0 without checkpoints.
int64_t staging_bytes(Training& t);
/// start_save starts a save; finish_save waits for it.
void start_save(Training& t, int64_t step);
void finish_save(Training& t);
/// Gives a running save a few seconds to finish before an error ends the job. Local.
void settle_save(Training& t);

}  // namespace tessera::cli
