// What the files of `tessera train` share.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/best.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/samples.h"
#include "cli/saving.h"
#include "cli/spikes.h"
#include "cli/watch.h"
#include "cli/watchdog.h"
#include "tessera/checkpoint.h"
#include "tessera/trace.h"

namespace tessera::cli {

struct TrainFlags : ModelFlags, SavingFlags, WatchFlags, SampleFlags, JsonFlag {
  int64_t tune = 0;  ///< number of plans to try out
  ProgressFiles files;
  bool quiet = false, profile = false;
  std::string on_nonfinite = "stop", trace;
  std::optional<int64_t> check_replicas;  ///< steps between comparisons; 0: never; none: chosen
  void declare(FlagTable& table);
  /// Throws a usage error for flags that require each other.
  void require() const;
};

/// What is trained, and where.
struct Run {
  const TrainFlags& args;
  Job job;
  Cluster cluster;
  std::vector<std::string> hosts = {};  ///< of the ranks
  Trainer trainer = {};
  CompileOptions compile = {};
  std::unique_ptr<Trace> trace = {};
  std::unique_ptr<Session> session = {};

  int64_t parameters();  ///< number of their elements
  bool is_root() const { return cluster.is_root(); }
};

/// What a run reads.
struct RunData {
  std::unique_ptr<DataSource> source;
  std::string fingerprint;  ///< of `source`
  std::unique_ptr<Batcher> batcher;
  std::unique_ptr<Evaluator> evaluator;
  std::unique_ptr<Samples> samples = {};  ///< with --sample-every

  /// Opens all of it. Throws usage errors, one if the ranks' data differ among them. Collective.
  explicit RunData(Run& run);
};

/// What a checkpoint holds of a run, besides tensors.
struct RunState {
  int64_t first_step = 0;
  int64_t skipped = 0;  ///< steps whose update was left out
  SpikeGuard spikes;
  BestEvaluation best = {};

  explicit RunState(const Config& config) : spikes(config) {}
  Saver::Metadata metadata(Run& run, const RunData& data) const;
  /// Goes on from `latest`, or the newest checkpoint that can be read; none: from step 0. Throws
  /// usage errors for a checkpoint of another job, which name the keys or data that differ.
  /// Collective.
  void resume(Run& run, const RunData& data, const std::optional<Checkpoint>& latest, Saver& saver,
              Progress& progress);
};

/// The keys that were given or differ from their defaults (all are in the log), and the resulting
/// parameters, memory and layout.
std::string banner(Run& run, const Saver& saver);
/// The first line of a log, and of the part after each --resume.
nlohmann::json header(Run& run, const RunState& state);
/// Adds the memory plan and the table of collectives to that line.
void add_plan(Run& run, const Saver& saver, nlohmann::json& head);

/// A command that goes on with the results of a run; "" if it leaves none.
std::string next_command(const Run& run);

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

/// Adds the step number to errors.
template <class Work>
auto in_step(int64_t step, Work work) {
  const auto text = [&](const Error& e) { return fmt::format("step {}: {}", step, e.what()); };
  try {
    return work();
  } catch (const PeerFailure& e) {
    throw PeerFailure(e.kind(), text(e));
  } catch (const Error& e) {
    throw Error(e.kind(), text(e));
  }
}

}  // namespace tessera::cli
