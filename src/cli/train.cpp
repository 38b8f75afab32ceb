// train: opens data and checkpoints, compiles the step, and runs it.
#include <unistd.h>

#include "base/env.h"
#include "base/fail.h"
#include "base/files.h"
#include "cli/build_model.h"
#include "cli/profile.h"
#include "cli/report.h"
#include "cli/sweep.h"
#include "cli/terminal.h"
#include "cli/training_loop.h"
#include "tessera/build_info.h"

namespace tessera::cli {

void TrainFlags::declare(FlagTable& table) {
  ModelFlags::declare(table);
  table.add(kModelHeading, {data_flag(keys), init_flag(keys)});
  table.add(
      kTrainingHeading,
      {{"--steps N", SetsKey{&sets, "train.steps"}, kIsKey, "Number of steps to train."},
       batch_flag(sets),
       dtype_flag(sets, "Dtype of activations: float32, bfloat16, float16, float64 or float8."),
       {"--seed N", SetsKey{&sets, "train.seed"}, kIsKey,
        "Seed of initial values, dropout and the order of data."},
       {"--on-nonfinite stop|skip", &on_nonfinite, kAgree,
        "What happens at a step whose loss or gradient is not finite: stop (default), or skip it "
        "and count."},
       {"--check-replicas N", &check_replicas, kAgree,
        "Number of steps between comparisons of the ranks' copies of parameters and state, which "
        "come before every save, too (0: never; by default as many as keep their cost below 0.1 % "
        "of the time)."}});
  table.add(
      kMeshHeading,
      {{"--overlap on|off", SetsKey{&sets, "train.overlap"}, kIsKey,
        "Whether communication overlaps compute (on). With off a rank waits for every collective "
        "where it starts."},
       {"--chunks N|auto", SetsKey{&sets, "train.chunks"}, kIsKey,
        "Number of chunks a matmul is split into so that its collective overlaps its compute, and "
        "of parts of a rank's tokens whose rows travel to experts in turn."},
       {"--tune K", &tune, kAgree,
        "Tries the K best plans of a layout with auto for a few steps each, and trains with the "
        "fastest."}});
  table.add(kMemoryHeading, {{"--offload none|state", SetsKey{&sets, "train.offload"}, kIsKey,
                              "Keeps optimizer state in host memory, with state."},
                             recompute_flag(sets)});
  table.add(
      kSeeingHeading,
      {{"--log FILE", &files.log, kAllOrNone, "Writes JSON lines to FILE, one a step."},
       {"--quiet", &quiet, kOfRoot,
        "Prints only what goes wrong, what other flags ask for, and the summary."},
       {"--csv FILE", &files.csv, kOfRoot, "Writes the numbers of the log to FILE, as a table."},
       {"--tensorboard DIR", &files.tensorboard, kOfRoot, "Folder of event files for TensorBoard."},
       {"--profile", &profile, kAgree,
        "Prints at the end time, memory, FLOP/s and bytes/s by op and source line, and what "
        "each collective exposed, beside what is predicted. If the machine is known "
        "(--machine), each kernel stands against its roofline, the one that loses most time "
        "first."}});
  WatchFlags::declare(table);
  table.add(
      kSeeingHeading,
      {{"--trace FILE", &trace, kAgree,
        "Writes when each step ran on each rank to FILE, for Perfetto or chrome://tracing."}});
  SavingFlags::declare(table);
  SampleFlags::declare(table);
  JsonFlag::declare(table);
}

void TrainFlags::require() const {
  SavingFlags::require();
  TESSERA_REQUIRE(sample_every > 0 || prompts.empty(),
                  "--sample-prompt needs --sample-every N, the steps between samples");
  TESSERA_REQUIRE(check_replicas.value_or(0) >= 0,
                  "--check-replicas {} is negative; 0 never compares", check_replicas.value_or(0));
  TESSERA_REQUIRE(on_nonfinite == "skip" || on_nonfinite == "stop",
                  "--on-nonfinite '{}' is neither skip nor stop", on_nonfinite);
}

namespace {

/// Predicts the root's step time if a machine profile is known. On the CPU it also enables
/// profiling, which costs no time there, to compare steps with the prediction.
Forecast forecast_of(Run& run) {
  Forecast forecast;
  run.compile.profile = run.args.profile;
  if (!run.is_root()) return forecast;
  const std::optional<Machine> machine = find_machine(run.args);
  if (!machine) return forecast;
  try {
    forecast = Forecast(run.trainer.graph, run.compile, *machine);
  } catch (const Error&) {
    if (!run.args.machine.empty()) throw;  // a calibrated profile may not know the mesh
    return forecast;
  }
  if (run.job.device == "cpu") run.compile.profile = true;
  return forecast;
}

/// Builds the step; its notes go to `note`. Compiled by compile().
void build(Run& run, const Watch& watch, const SpikeGuard& spikes,
           std::function<void(const std::string&)> note) {
  const Config& c = run.job.config;
  Trainer& trainer = run.trainer;
  build_trainer(run.job, trainer, false);
  watch.add_unread(trainer.graph, trainer.functions[0]);
  run.compile = CompileOptions{run.job.mesh,        run.job.layout,
                               trainer.functions,   static_cast<uint64_t>(c.integer("train.seed")),
                               threads_of(run.job), {trainer.model.loss.name()},
                               watch.keep(),        std::move(note)};
  if (trainer.minimized.loss_scale.empty())  // else a non-finite gradient skips the update
    run.compile.guards.push_back(trainer.minimized.gradient_norm.name());
  spikes.add_limits(trainer, run.compile);
  agree_on_machine(run.cluster, run.job);
  set_schedule(run.job, run.compile);
  if (!run.args.trace.empty()) run.trace = std::make_unique<Trace>();
  run.compile.trace = run.trace.get();
  run.compile.skip_non_finite = run.args.on_nonfinite == "skip" || spikes.leaves_out();
}

/// Measures startup phases: mark() stores the seconds since the last mark.
class StartClock {
 public:
  void mark(const char* name) {
    phases_[name] = seconds_since(last_);
    last_ = host_seconds();
  }
  const nlohmann::json& phases() const { return phases_; }

 private:
  nlohmann::json phases_;
  double last_ = host_seconds();
};

/// A run with what it reads and writes.
class Training {
 public:
  Training(const TrainFlags& args, Watch watch, Job job, Cluster cluster, StartClock& clock)
      : run_{args, std::move(job), std::move(cluster)},
        watch_(std::move(watch)),
        clock_(clock),
        state_(run_.job.config),
        replicas_(args.check_replicas, args.checkpoint),
        watchdog_(run_.cluster, args.timeout) {}

  /// Returns the exit code.
  int run() {
    const TrainFlags& args = run_.args;
    const Forecast forecast = prepare();
    clock_.mark("compile_s");
    open_outputs();
    require_evaluations();
    const nlohmann::json head = load();
    const std::string device = run_.session->device() != "cpu" ? run_.job.device : "cpu";
    const int threads = threads_of(run_.job);
    const double peak = [&] {
      const Watchdog::Phase phase(watchdog_, "measuring the peak of matmuls");
      return measured_gemm_peak(run_.cluster, run_.hosts, threads, device,
                                activations_of(run_.job.config));
    }();
    clock_.mark("peak_s");
    TrainingLoop loop(
        {run_, *data_, state_, watch_, *progress_, *saver_, replicas_, watchdog_, signals_},
        forecast, clock_.phases(), peak);
    nlohmann::json report;
    const int code = loop.run(report);
    if (const std::string text = loop.summary(code); !text.empty()) progress_->note(text);
    report.update(head);
    if (run_.trace) run_.trace->write(run_.cluster, args.trace);
    if (args.profile)
      report_profile(run_, gemm_peak_of_rank(loop.peak(), run_.hosts, threads, device), *progress_);
    if (run_.is_root()) write_report(args.json, report);
    return code;
  }

  /// An error ends the run, of this rank if `cause` is not null: then the others are told, so that
  /// they do not wait for it.
  void give_up(const char* cause) {
    watchdog_.stop();
    if (cause) run_.cluster.fail(cause);
    if (saver_) saver_->settle();
  }

 private:
  Forecast prepare() {
    learning_rate(run_.job, 0);  // a custom schedule may reject its keys
    data_ = std::make_unique<RunData>(run_);
    build(run_, watch_, state_.spikes, [this](const std::string& line) { progress_->note(line); });
    Forecast forecast = forecast_of(run_);
    run_.session = std::make_unique<Session>(run_.trainer.graph, run_.cluster, run_.compile);
    if (data_->evaluator->has_data()) data_->evaluator->prepare_for_training();
    return forecast;
  }

  /// Checkpoints come first: nothing is written if they are another run's.
  void open_outputs() {
    const TrainFlags& args = run_.args;
    OpenCheckpoints checkpoints = open_checkpoints(run_.cluster, args);
    latest_ = checkpoints.latest;
    std::vector<std::string> metrics;
    for (const Metric& m : run_.trainer.minimized.metrics) metrics.push_back(m.name);
    progress_ = std::make_unique<Progress>(run_.is_root(), args.quiet, args.files, args.resume,
                                           run_.job.config.integer("train.steps"), metrics);
    saver_ = std::make_unique<Saver>(
        args, std::move(checkpoints), *run_.session, *progress_, [this](int64_t step) {
          Saver::Metadata all = state_.metadata(run_, *data_);
          all[ReplicaCheck::kKey] = replicas_.before_save(*run_.session, step);
          return all;
        });
    progress_->inform(banner(run_, *saver_));
    if (const std::string text = data_->source->warning(); !text.empty())
      progress_->note("warning: " + text);
    if (const std::string idle = idle_axes_note(run_.job); !idle.empty()) progress_->note(idle);
  }

  void require_evaluations() {
    if (data_->evaluator->has_data()) return;
    progress_->inform("no held-out data: nothing is evaluated");
    TESSERA_REQUIRE(
        !run_.args.keep_best && run_.job.config.integer("train.patience") == 0,
        "train.patience and --keep-best need held-out data; give a share: --set held_out=0.1");
  }

  /// Loads what the run starts from, and begins its log. Returns the log's first line.
  nlohmann::json load() {
    if (run_.args.resume) state_.resume(run_, *data_, latest_, *saver_, *progress_);
    if (!latest_) start_parameters(run_.job, *run_.session);
    run_.hosts = run_.cluster.hosts();
    clock_.mark("load_s");
    const nlohmann::json head = header(run_, state_);
    nlohmann::json first_line = head;
    if (run_.is_root() && progress_->has_log()) add_plan(run_, *saver_, first_line);
    progress_->record(first_line);
    return head;
  }

  Run run_;
  Watch watch_;
  StartClock& clock_;
  StopSignals signals_;
  RunState state_;
  ReplicaCheck replicas_;
  std::unique_ptr<RunData> data_;
  std::optional<Checkpoint> latest_;
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<Saver> saver_;
  Watchdog watchdog_;
};

/// Throws a usage error for keys of a job that need flags, or each other.
void require_keys(const TrainFlags& args, const Config& c) {
  TESSERA_REQUIRE(
      c.text("train.on_spike") != "rollback" || (!args.checkpoint.empty() && args.save_every > 0),
      "train.on_spike=rollback goes back to a checkpoint; add --checkpoint DIR and --save-every N");
  TESSERA_REQUIRE(c.integer("train.patience") == 0 || c.integer("train.eval_every") > 0,
                  "train.patience={} counts evaluations; say how many steps lie between them with "
                  "train.eval_every",
                  c.integer("train.patience"));
}

int run_train(const TrainFlags& args, const std::vector<ModelSpec>& models) {
  args.require();
  require_writable(args.json);
  require_writable(args.trace);
  if (read_environment().rank <= 0 && !args.quiet) {
    say("tessera {}: train {}\n", build_info().version, args.model);
    std::fflush(stdout);
  }
  Watch watch(args);
  ModelFlags wanted = args;
  wanted.staging_bytes = args.most_staging();
  Job job = resolve(args.tune != 0 ? tuned(wanted, args.tune, models) : wanted, models, false);
  require_keys(args, job.config);
  fit_memory(wanted, job);
  StartClock clock;
  Cluster cluster = make_cluster(job, args);
  clock.mark("ranks_s");
  Training training(args, std::move(watch), std::move(job), std::move(cluster), clock);
  try {
    return training.run();
  } catch (const CommonFailure&) {
    throw;
  } catch (const PeerFailure&) {
    training.give_up(nullptr);
    throw;
  } catch (const std::exception& e) {
    training.give_up(e.what());
    throw;
  }
}

}  // namespace

Command train_command() {
  return command("train", "Trains a model.",
                 "tessera train gpt --data data/moby-dick.txt --mesh \"data:2;model:2\" \\\n"
                 "    --layout \"batch:data;heads,ff,vocab:model\" --steps 200",
                 Processes::all, run_train);
}

}  // namespace tessera::cli
