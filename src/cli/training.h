// State and functions shared by the files of `tessera train`.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/best.h"
#include "cli/clock.h"
#include "cli/commands.h"
#include "cli/forecast.h"
#include "cli/progress.h"
#include "cli/replica_check.h"
#include "cli/run_summary.h"
#include "cli/samples.h"
#include "cli/signals.h"
#include "cli/spikes.h"
#include "cli/stragglers.h"
#include "cli/watch.h"
#include "cli/watchdog.h"
#include "tessera/checkpoint.h"
#include "tessera/trace.h"

namespace tessera::cli {

struct SavingFlags {
  std::string checkpoint;  ///< directory
  int64_t save_every = 0, keep = 3;
  double save_retry = 60;
  bool keep_best = false;  ///< the checkpoint of the lowest evaluation loss, too
  std::string staging;
  bool resume = false, allow_changes = false;
  void declare(FlagTable& table);
  /// Most bytes of a rank's save beside the run; 0 without checkpoints.
  int64_t most_staging() const;
};

struct TrainFlags : ModelFlags, SavingFlags, WatchFlags, SampleFlags, JsonFlag {
  int64_t tune = 0;  ///< number of plans to try out
  ProgressFiles files;
  bool quiet = false, profile = false;
  std::string on_nonfinite = "stop", trace;
  std::optional<int64_t> check_replicas;  ///< steps between comparisons; 0: never; none: chosen
  void declare(FlagTable& table);
};

/// A save that failed because of storage. The same in every process but for `next`.
struct FailedSave {
  int64_t tries = 0;            ///< failures in a row; 0: no save failed
  bool trying = false;          ///< another attempt is under way
  Clock::time_point next = {};  ///< when to try again
};

struct Training {
  const TrainFlags& args;
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
  std::unique_ptr<Samples> samples = {};  ///< with --sample-every
  std::unique_ptr<Trace> trace = {};
  std::unique_ptr<Session> session = {};
  std::unique_ptr<Checkpoints> checkpoints = {};
  std::unique_ptr<Checkpoints> best_checkpoints = {};  ///< of --keep-best
  BestEvaluation best = {};
  FailedSave failed_save = {};
  std::unique_ptr<Progress> progress = {};
  RunSummary summary = {};
  Stragglers stragglers = {};
  Forecast forecast = {};  ///< in the root, if a machine profile is known
  std::vector<std::string> hosts = {};
  int64_t first_step = 0;
  int64_t skipped = 0, skipped_in_a_row = 0;  ///< steps whose update was left out
  Spikes spikes = {};
  std::vector<std::string> told = {};  ///< fallbacks of the device that were printed
  Watchdog watchdog{cluster, args.timeout};
};

/// Measured FLOP/s of matmuls on all GPUs, in `dtype`, or on all cores that the ranks of this
/// cluster share, in float32; the log's peak_share refers to it. One rank of each host measures
/// cores, the others wait. `threads`: per rank; 0: the cores divided by the ranks. Collective.
double measured_gemm_peak(Cluster& cluster, const std::vector<std::string>& hosts, int threads,
                          const std::string& device, DType dtype);

/// Of that rate, what the threads of the root rank reach while other ranks wait. Ranks that are
/// more than the cores take turns, so it may be more than an equal share. `threads`: as above.
double gemm_peak_of_rank(double peak, const std::vector<std::string>& hosts, int threads,
                         const std::string& device);

/// The peak after a step. A step that computed faster than `peak`, as when other load was there
/// while that was measured, is the new one, and its share is 1.
double raised_peak(StepRecord& r, double peak);

/// The newest checkpoint if the job continues from it. Called before anything is written. Throws
/// usage errors for a directory of another run or job (naming the keys or data that differ).
std::optional<Checkpoint> open_checkpoints(Training& t);
/// Loads the checkpoint.
void resume(Training& t, const std::optional<Checkpoint>& latest);
/// Memory used by a save in the background, for the ranks of this process; 0 without checkpoints.
int64_t staging_bytes(Training& t);
/// What bit-equal results depend on, besides model, data and seed; kept in a checkpoint.
std::string numerics_key(Training& t);

/// With train.on_spike = skip: outputs and guards of the function "train" by which it leaves out
/// its update if loss or gradient norm is above a limit that is fed.
void add_spike_limits(Training& t);
/// Feeds the limits of the next step.
void feed_spike_limits(Training& t);
/// Whether the last run left out its update because of these limits.
bool left_out_spike(Training& t);
/// After step `r`: finds out whether it was a spike (Spikes::last), and takes it up into the
/// history.
void note_spike(Training& t, const StepRecord& r);
/// Goes back to the newest checkpoint of --save-every because step `step` was a spike, and returns
/// its step; `step` if there is none yet. Throws a usage error after several rollbacks to one
/// checkpoint. Collective.
int64_t roll_back(Training& t, int64_t step);

/// Starts a save of the state after `step` steps, once the save before is finished. Storage that
/// fails is no reason to end the job: the first failure is told, and tend_saves() tries again.
/// Collective.
void start_save(Training& t, int64_t step);
/// Whether this process has news about its saves: one failed, or a failed one is due again. Local.
bool has_save_news(const Training& t);
/// After a step, if a process has news: notices a failed save and starts it again, of the state
/// that there is now; tells when it succeeds. Collective.
void tend_saves(Training& t, int64_t step);
/// Waits for the save that was started. False if storage failed, which is told and tried again.
/// Collective.
bool finish_save(Training& t);
/// Waits for the last save and, while it fails, tries again for --save-retry seconds. False if the
/// state after `step` steps is not saved. Collective.
bool end_saves(Training& t, int64_t step);
/// With --keep-best: saves the state after `step` steps, the best so far. Storage that fails is
/// told, and leaves the best one before. Collective.
void save_best(Training& t, int64_t step);
/// Gives a running save a few seconds to finish before an error ends the job. Local.
void settle_save(Training& t);

}  // namespace tessera::cli
