#include <unistd.h>

#include <cmath>
#include <set>

#include "base/env.h"
#include "base/fail.h"
#include "cli/build_model.h"
#include "cli/idle_axes.h"
#include "cli/profile.h"
#include "cli/report.h"
#include "cli/say.h"
#include "cli/source_text.h"
#include "cli/sweep.h"
#include "cli/training.h"
#include "tessera/build_info.h"
#include "tessera/explain.h"
#include "tessera/inspect.h"

namespace tessera::cli {

namespace {

/// Predicts the root's step time if a machine profile is known. On the CPU it also enables
/// profiling, which costs no time there, to compare steps with the prediction.
void plan_times(Training& t) {
  t.compile.profile = t.args.profile;
  if (!t.cluster.is_root()) return;
  const std::optional<Machine> machine = find_machine(t.args);
  if (!machine) return;
  try {
    t.forecast = Forecast(t.trainer.graph, t.compile, *machine);
  } catch (const Error&) {
    if (!t.args.machine.empty()) throw;  // a calibrated profile may not know the mesh
    return;
  }
  if (t.job.device == "cpu") t.compile.profile = true;
}

void prepare(Training& t) {
  const Config& c = t.job.config;
  learning_rate(t.job, 0);  // a custom schedule may reject its keys
  t.source = open_data(t.job, false);
  t.data_fingerprint = t.source->fingerprint();
  t.cluster.require_same({{"the training data", t.data_fingerprint}});
  BatchOptions options;
  options.seed = static_cast<uint64_t>(c.integer("train.seed"));
  t.batcher = std::make_unique<Batcher>(*t.source, c.integer("train.batch"), options);
  t.evaluator = std::make_unique<Evaluator>(t.job, t.cluster);
  if (t.args.sample_every > 0)
    t.samples = std::make_unique<Samples>(t.args, t.args.model, t.job, t.cluster);
  build_trainer(t.job, t.trainer, false);
  t.watch.add_unread(t.trainer.graph, t.trainer.functions[0]);
  t.compile = CompileOptions{
      t.job.mesh,          t.job.layout,
      t.trainer.functions, options.seed,
      threads_of(t.job),   {t.trainer.model.loss.name()},
      t.watch.keep(),      [&t](const std::string& line) { t.progress->note(line); }};
  if (t.trainer.minimized.loss_scale.empty())  // else a non-finite gradient skips the update
    t.compile.guards.push_back(t.trainer.minimized.gradient_norm.name());
  add_spike_limits(t);
  agree_on_machine(t.cluster, t.job);
  set_schedule(t.job, t.compile);
  if (!t.args.trace.empty()) t.trace = std::make_unique<Trace>();
  t.compile.trace = t.trace.get();
  plan_times(t);
  t.compile.skip_non_finite = t.args.on_nonfinite == "skip" || c.text("train.on_spike") == "skip";
  t.session = std::make_unique<Session>(t.trainer.graph, t.cluster, t.compile);
  if (t.evaluator->has_data()) t.evaluator->prepare_for_training();
}

int64_t parameters_of(Training& t) {
  int64_t elements = 0;
  for (const Tensor& p : t.trainer.graph.parameters()) elements += p.shape().elements();
  return elements;
}

/// The keys that were given or differ from their defaults (all are in the log), and the resulting
/// parameters, memory and layout.
std::string banner(Training& t) {
  const Config defaults = default_config(*t.job.spec);
  std::string text = "keys   ";
  size_t others = 0;
  for (const ConfigKey& k : t.job.config.keys()) {
    if (k.value == defaults.text(k.name) && !t.job.given.contains(k.name))
      ++others;
    else if (!k.name.starts_with("layout."))
      text += fmt::format(" {}={}", k.name, k.value);
  }
  text += fmt::format("  ({} at their defaults: {} info --keys)\n", others, t.args.program);
  const auto bytes = [](int64_t n) { return with_unit(static_cast<double>(n), "B"); };
  const int64_t stored = t.session->program().persistent_bytes(),
                transient = t.session->program().transient_bytes();
  return text +
         fmt::format(
             "mesh    {} ({} ranks, {})\nlayout  {}\nbatch   {}\nmemory  {} parameters; of a rank: "
             "{} = "
             "{} parameters, optimizer state, inputs + {} transient, at the peak{}{}",
             t.job.mesh.to_string(), t.cluster.size(), t.cluster.backend(),
             t.job.layout.rules().empty() ? "(nothing split)" : t.job.layout.to_string(),
             batch_text(t.job), parameters_of(t), bytes(stored + transient), bytes(stored),
             bytes(transient), offload_text(t),
             t.checkpoints ? fmt::format(", {} to save beside the run", bytes(staging_bytes(t)))
                           : "") +
         fallbacks_text(t);
}

/// Adds the memory plan and the table of collectives to the log.
void add_plan(Training& t, nlohmann::json& head) {
  const Explanation plan = explain(t.trainer.graph, t.compile);
  nlohmann::json at_peak = nlohmann::json::array(), sent = nlohmann::json::array();
  for (const auto& [tensor, bytes] : plan.memory.at_peak)
    at_peak.push_back({{"tensor", tensor}, {"bytes", bytes}});
  for (const FunctionReport& f : plan.functions) {
    for (const CollectiveReport& c : f.collectives)
      sent.push_back({{"kind", c.kind},
                      {"axes", c.axes},
                      {"tensor", c.tensor},
                      {"rule", c.rule},
                      {"source", c.source},
                      {"bytes", c.bytes}});
  }
  head["memory"] = {{"params", plan.memory.params}, {"state", plan.memory.state},
                    {"inputs", plan.memory.inputs}, {"transient", plan.memory.transient},
                    {"staging", staging_bytes(t)},  {"at_peak", at_peak}};
  head["communication"] = sent;
  std::set<std::string> places;
  for (const nlohmann::json& row : sent) places.insert(row["source"].get<std::string>());
  head["code"] = code_around(places, source_files(t.trainer.graph));
}

/// (name, number of ranks) of each host, in order of rank.
std::vector<std::pair<std::string, int64_t>> ranks_by_host(const std::vector<std::string>& hosts) {
  std::vector<std::pair<std::string, int64_t>> all;
  for (const std::string& host : hosts) {
    if (all.empty() || all.back().first != host) all.emplace_back(host, 0);
    ++all.back().second;
  }
  return all;
}

/// The first line of a log, and of the part after each --resume.
nlohmann::json header(Training& t) {
  nlohmann::json config;
  for (const ConfigKey& k : t.job.config.keys()) config[k.name] = k.value;
  return {{"config", config},
          {"version", build_info().version},
          {"program", fmt::format("{:016x}", t.session->program().hash())},
          {"ranks", t.cluster.size()},
          {"backend", t.cluster.backend()},
          {"hosts", ranks_by_host(t.hosts)},
          {"process", getpid()},
          {"parameters", parameters_of(t)},
          {"first_step", t.first_step}};
}

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

/// The reason why the last step updated nothing, or "". Collective.
std::string why_skipped(Training& t, StepRecord& r) {
  const Minimized& m = t.trainer.minimized;
  if (!t.session->skipped().empty())
    return t.spikes.last.empty() ? t.session->skipped() : t.spikes.last;
  if (m.loss_scale.empty()) return "";
  r.loss_scale = t.session->fetch_scalar(m.loss_scale.name());
  if (std::isfinite(r.grad_norm)) return "";
  return fmt::format("a gradient is not finite in {}; the loss is scaled by {} from now on",
                     t.job.config.text("train.dtype"), r.loss_scale);
}

/// Counts a step whose update was left out; throws if there were too many in a row.
void count_skip(Training& t, StepRecord& r) {
  constexpr int64_t kMostInARow = 20;
  const std::string why = why_skipped(t, r);
  if (why.empty()) {
    t.skipped_in_a_row = 0;
    return;
  }
  ++t.skipped;
  t.progress->note(fmt::format("step {} is skipped ({} so far): {}", r.step, t.skipped, why));
  TESSERA_REQUIRE(
      ++t.skipped_in_a_row < kMostInARow,
      "{} steps in a row were left out, the last one at step {}: {}; lower train.lr, or go back "
      "to an earlier checkpoint",
      kMostInARow, r.step, why);
}

/// What the ranks tell each other after a step.
struct News {
  int signal = 0;            ///< one that some rank received, or 0
  bool about_saves = false;  ///< of has_save_news()
};

/// Shares after a step what every rank needs of the others; sets the slowest rank in the record.
News share_news(Training& t, StepRecord& r, double seconds) {
  std::vector<double> mine;
  for (const double waited : t.session->waited()) {
    mine.push_back(t.signals.seen());
    mine.push_back(has_save_news(t) ? 1 : 0);
    mine.push_back(seconds - waited);
  }
  const std::vector<double> all = in_step(r.step, [&] { return t.cluster.gather(mine); });
  std::vector<double> own;
  News news;
  for (size_t i = 0; i < all.size(); i += 3) {
    news.signal = std::max(news.signal, static_cast<int>(all[i]));
    news.about_saves |= all[i + 1] != 0;
    own.push_back(all[i + 2]);
  }
  const std::string line = t.stragglers.after_step(r.step, own, t.hosts);
  r.slowest_rank = t.stragglers.slowest();
  r.slowest_ms = 1e3 * t.stragglers.slowest_seconds();
  r.median_ms = 1e3 * t.stragglers.median_seconds();
  if (!line.empty()) {
    t.progress->note(line);
    t.progress->record(
        nlohmann::json{{"step", r.step}, {"slow_rank", t.stragglers.slow()}, {"why", line}}.dump());
  }
  if (const std::string off = t.forecast.after_step(r.step, seconds, *t.session, line);
      !off.empty())
    t.progress->note(off);
  return news;
}

/// Runs a step. If float16 overflows, the error suggests a remedy.
void run_step(Training& t) {
  try {
    t.session->run("train");
    if (!t.session->skipped().empty() && t.args.on_nonfinite == "stop" && !left_out_spike(t))
      fail(ErrorKind::usage, "{}", t.session->skipped());
  } catch (const PeerFailure&) {
    throw;
  } catch (const Error& e) {
    const std::string what = e.what();
    if (t.job.config.text("train.dtype") != "float16" || what.find("not finite") == what.npos)
      throw;
    throw Error(e.kind(), fmt::format("{}; float16 ends at 65504: {}", what,
                                      !t.trainer.minimized.loss_scale.empty()
                                          ? "train in bfloat16 or float32"
                                          : "scale the loss with train.loss_scale=auto, or train "
                                            "in bfloat16"));
  }
}

/// Runs and times one step. Returns its record without eta_s.
StepRecord train_step(Training& t, int64_t step, double peak) {
  const Config& c = t.job.config;
  const Clock::time_point begin = Clock::now();
  t.watchdog.note_step(step + 1);
  t.session->set_step(step);
  {
    const Watchdog::Phase phase(t.watchdog, fmt::format("reading the data of step {}", step + 1));
    t.batcher->feed(*t.session, step + t.spikes.data_shift);
  }
  const double reading = seconds_since(begin);
  feed_spike_limits(t);
  feed_scalar(*t.session, t.trainer.lr, learning_rate(t.job, step));
  in_step(step + 1, [&] { run_step(t); });
  StepRecord r;
  r.step = step + 1;
  r.loss = t.session->fetch_scalar(t.trainer.model.loss.name());
  r.grad_norm = t.session->fetch_scalar(t.trainer.minimized.gradient_norm.name());
  for (const Metric& m : t.trainer.minimized.metrics)
    r.metrics.emplace_back(m.name, t.session->fetch_scalar(m.value.name()));
  note_spike(t, r);
  count_skip(t, r);
  const double seconds = seconds_since(begin);
  r.steps = c.integer("train.steps");
  r.lr = learning_rate(t.job, step);
  r.ms = seconds * 1e3;
  r.data_ms = reading * 1e3;
  r.tokens_per_s =
      static_cast<double>(c.integer("train.batch") * tokens_of_example(t.job)) / seconds;
  r.flops_per_s =
      static_cast<double>(t.session->program().flops("train")) * t.cluster.size() / seconds;
  r.peak_share = peak > 0 ? r.flops_per_s / peak : 0;
  r.planned_ms = 1e3 * t.forecast.seconds();
  r.memory = t.session->program().persistent_bytes() + t.session->program().transient_bytes();
  r.skipped = t.skipped;
  return r;
}

void evaluate(Training& t, int64_t step, nlohmann::json& report) {
  if (!t.evaluator->has_data()) return;
  const Evaluation e = t.evaluator->run(*t.session);
  t.progress->evaluation(step, e.loss, e.accuracy, e.metrics);
  report["eval_loss"] = json_number(e.loss);
  if (e.accuracy >= 0) report["eval_accuracy"] = e.accuracy;
  for (const auto& [name, value] : e.metrics) report["eval_" + name] = json_number(value);
  if (t.best.take(step, e.loss)) save_best(t, step);
  report["best_step"] = t.best.step;
  report["best_loss"] = json_number(t.best.loss);
}

/// Whether train.patience ends the job before step `step`; says so.
bool ends_early(Training& t, int64_t step) {
  const Config& c = t.job.config;
  const int64_t patience = c.integer("train.patience");
  if (!t.best.ends_before(step, c.integer("train.eval_every"), patience)) return false;
  t.progress->note(fmt::format(
      "stopped early after step {}: {} evaluations since step {} had no lower loss than "
      "its {:.4f}",
      step, patience, t.best.step, t.best.loss));
  t.progress->record(nlohmann::json{{"step", step}, {"stopped_early", true}}.dump());
  return true;
}

/// Called after the first step: reports the time of each startup phase.
void report_start(Training& t, double first_step) {
  t.startup["first_step_s"] = first_step;
  double total = 0;
  for (const auto& phase : t.startup) total += phase.get<double>();
  t.progress->inform(fmt::format(
      "first step after {:.2f} s: ranks {:.2f}, compile {:.2f}, load {:.2f}, matmul peak {:.2f}, "
      "step {:.2f}",
      total, t.startup["ranks_s"].get<double>(), t.startup["compile_s"].get<double>(),
      t.startup["load_s"].get<double>(), t.startup["peak_s"].get<double>(), first_step));
  t.progress->record(nlohmann::json{{"startup", t.startup}}.dump());
}

/// Waits for the last save. If storage still fails, says what is lost and returns kRequeue, else 0.
int end_with_saves(Training& t, int64_t step) {
  if (!t.checkpoints || end_saves(t, step)) return 0;
  t.progress->note(fmt::format(
      "error: the state after step {} could not be saved in {} s; exit code {} asks for a restart, "
      "which goes on from the newest checkpoint in '{}': make room there first",
      step, t.args.save_retry, kRequeue, t.args.checkpoint));
  return kRequeue;
}

/// Saves and stops after a signal.
void save_and_stop(Training& t, int64_t step, int signal) {
  if (t.checkpoints) start_save(t, step);
  if (end_with_saves(t, step) != 0) return;
  t.progress->note(fmt::format(
      "{}: {}; exit code {} asks for a restart", signal_name(signal),
      t.checkpoints ? fmt::format("saved at step {}", step)
                    : fmt::format("stopped at step {}, nothing saved (no --checkpoint)", step),
      kRequeue));
}

/// A device tells some fallbacks only after it has tried: captures, in the second step. Bounds of
/// rows are raised in any step.
void note_fallbacks(Training& t) {
  for (const std::string& line : t.session->fallbacks()) {
    if (std::find(t.told.begin(), t.told.end(), line) != t.told.end()) continue;
    t.told.push_back(line);
    t.progress->note("note    " + line);
  }
}

/// Prints what the job did, where its results are, and a command that goes on with them.
void summarize(Training& t, int code) {
  if (!t.cluster.is_root()) return;
  const TrainFlags& a = t.args;
  std::string next;
  if (code == 0 && t.checkpoints) {
    const bool writes = t.job.spec->transformer && t.job.spec->transformer(t.job.config).causal;
    next = fmt::format("{} {} {} --checkpoint {}", shell_word(a.program),
                       writes ? "generate" : "eval", shell_word(a.model), shell_word(a.checkpoint));
    if (writes && !a.tokenizer.empty()) next += " --tokenizer " + shell_word(a.tokenizer);
    const std::string data = "data.path=";
    for (const std::string& key : a.keys) {
      if (!writes && key.starts_with(data))
        next += " --data " + shell_word(key.substr(data.size()));
    }
  } else if (code == 0 && !a.files.log.empty()) {
    next = fmt::format("{} report {}", shell_word(a.program), shell_word(a.files.log));
  }
  const bool failed = t.failed_save.tries > 0;  // an error has said so
  const std::string text =
      t.summary.text(t.best, {failed ? std::string() : a.checkpoint, a.files.log, next});
  if (!text.empty()) t.progress->note(text);
}

/// Runs all steps and fills the report of --json. Returns the exit code.
/// `peak`: FLOP/s, raised by a step that is faster.
int train_steps(Training& t, double& peak, nlohmann::json& report) {
  const int64_t steps = t.job.config.integer("train.steps");
  const int64_t every = t.job.config.integer("train.eval_every");
  report["step"] = t.first_step;
  double mean_ms = 0;
  t.told = t.session->fallbacks();
  int64_t saved = t.first_step;
  bool told_peak = false;
  for (int64_t step = t.first_step; step < steps; ++step) {
    if (ends_early(t, step)) {
      if (t.checkpoints && saved < step) start_save(t, step);
      return end_with_saves(t, step);
    }
    StepRecord r = train_step(t, step, peak);
    if (const double raised = raised_peak(r, peak); raised > peak) {
      if (!told_peak && raised > 1.05 * peak)
        t.progress->note(fmt::format(
            "step {} reached {}, more than the {} that matmuls reached before the first step: from "
            "now on the peak is what the fastest step reached",
            step + 1, with_unit(raised, "FLOP/s"), with_unit(peak, "FLOP/s")));
      told_peak = told_peak || raised > 1.05 * peak;
      peak = raised;
    }
    mean_ms = step == t.first_step ? r.ms : 0.9 * mean_ms + 0.1 * r.ms;
    r.eta_s = mean_ms * 1e-3 * static_cast<double>(steps - step - 1);
    const News news = share_news(t, r, r.ms * 1e-3);
    t.progress->step(r);
    t.summary.add(r);
    note_fallbacks(t);
    if (step == t.first_step) report_start(t, r.ms * 1e-3);
    if (!t.spikes.last.empty() && t.job.config.text("train.on_spike") == "rollback") {
      const int64_t back = in_step(step + 1, [&] { return roll_back(t, step + 1); });
      if (back <= step) {
        step = back - 1;
        continue;
      }
    }
    t.watch.after_step(*t.session, t.trainer.graph, step + 1, *t.progress);
    report["step"] = step + 1;
    report["loss"] = json_number(r.loss);
    report["grad_norm"] = json_number(r.grad_norm);
    for (const auto& [name, value] : r.metrics) report[name] = json_number(value);
    report["ms"] = mean_ms;
    report["skipped"] = t.skipped;
    const bool last = step + 1 == steps;
    const bool saves =
        t.checkpoints && (last || news.signal != 0 ||
                          (t.args.save_every > 0 && (step + 1) % t.args.save_every == 0));
    in_step(step + 1, [&] { t.replicas.after_step(*t.session, step + 1, r.ms * 1e-3, saves); });
    if (news.signal != 0 && !last) {
      save_and_stop(t, step + 1, news.signal);
      return kRequeue;
    }
    // Before a save, so that its checkpoint knows the best evaluation.
    if (last || (every > 0 && (step + 1) % every == 0)) evaluate(t, step + 1, report);
    if (saves) {
      start_save(t, step + 1);
      saved = step + 1;
    } else if (news.about_saves) {
      tend_saves(t, step + 1);
    }
    if (t.samples && (last || (step + 1) % t.args.sample_every == 0)) {
      in_step(step + 1, [&] { t.progress->samples(step + 1, t.samples->write(*t.session)); });
    }
  }
  return end_with_saves(t, steps);
}

/// Measures startup phases: mark() stores the seconds since the last mark.
class StartClock {
 public:
  explicit StartClock(nlohmann::json& phases) : phases_(phases) {}
  void mark(const char* name) {
    phases_[name] = seconds_since(last_);
    last_ = Clock::now();
  }

 private:
  nlohmann::json& phases_;
  Clock::time_point last_ = Clock::now();
};

int run_training(Training& t, StartClock& clock) {
  const TrainFlags& args = t.args;
  prepare(t);
  clock.mark("compile_s");
  const std::optional<Checkpoint> latest = open_checkpoints(t);
  std::vector<std::string> metrics;
  for (const Metric& m : t.trainer.minimized.metrics) metrics.push_back(m.name);
  t.progress = std::make_unique<Progress>(t.cluster.is_root(), args.quiet, args.files, args.resume,
                                          t.job.config.integer("train.steps"), metrics);
  t.progress->inform(banner(t));
  if (const std::string idle = idle_axes_note(t.job); !idle.empty()) t.progress->note(idle);
  if (!t.evaluator->has_data()) t.progress->inform("no held-out data: nothing is evaluated");
  TESSERA_REQUIRE(
      t.evaluator->has_data() || (!args.keep_best && t.job.config.integer("train.patience") == 0),
      "train.patience and --keep-best need held-out data; give a share: --set held_out=0.1");
  if (args.resume) resume(t, latest);
  if (!latest) start_parameters(t.job, *t.session);
  t.hosts = t.cluster.hosts();
  clock.mark("load_s");
  const nlohmann::json head = header(t);
  nlohmann::json first_line = head;
  if (t.cluster.is_root() && t.progress->has_log()) add_plan(t, first_line);
  t.progress->record(first_line.dump());
  const std::string device = t.session->device() != "cpu" ? t.job.device : "cpu";
  double peak = [&] {
    const Watchdog::Phase phase(t.watchdog, "measuring the peak of matmuls");
    return measured_gemm_peak(t.cluster, t.hosts, threads_of(t.job), device,
                              activations_of(t.job.config));
  }();
  clock.mark("peak_s");
  nlohmann::json report;
  const int code = train_steps(t, peak, report);
  summarize(t, code);
  report.update(head);
  if (t.trace) t.trace->write(t.cluster, args.trace);
  if (args.profile) report_profile(t, gemm_peak_of_rank(peak, t.hosts, threads_of(t.job), device));
  if (t.cluster.is_root()) write_report(args.json, report);
  return code;
}

int run_train(const TrainFlags& args, const std::vector<ModelSpec>& models) {
  TESSERA_REQUIRE(!args.checkpoint.empty() || (!args.resume && args.save_every == 0),
                  "--resume and --save-every need --checkpoint DIR");
  TESSERA_REQUIRE(args.save_every >= 0, "--save-every {} is negative; 0 saves at the end only",
                  args.save_every);
  TESSERA_REQUIRE(args.sample_every > 0 || args.prompts.empty(),
                  "--sample-prompt needs --sample-every N, the steps between samples");
  TESSERA_REQUIRE(args.save_retry >= 0 && args.save_retry <= 86400,
                  "--save-retry {} is not between 0 and 86400 seconds", args.save_retry);
  TESSERA_REQUIRE(args.check_replicas.value_or(0) >= 0,
                  "--check-replicas {} is negative; 0 never compares",
                  args.check_replicas.value_or(0));
  TESSERA_REQUIRE(args.on_nonfinite == "skip" || args.on_nonfinite == "stop",
                  "--on-nonfinite '{}' is neither skip nor stop", args.on_nonfinite);
  TESSERA_REQUIRE(!args.keep_best || !args.checkpoint.empty(),
                  "--keep-best needs --checkpoint DIR");
  require_place_for(args.json);
  require_place_for(args.trace);
  if (read_environment().rank <= 0 && !args.quiet) {
    say("tessera {}: train {}\n", build_info().version, args.model);
    std::fflush(stdout);
  }
  Watch watch(args);
  ModelFlags wanted = args;
  wanted.staging_bytes = args.most_staging();
  Job job = resolve(args.tune != 0 ? tuned(wanted, args.tune, models) : wanted, models, false);
  TESSERA_REQUIRE(
      job.config.text("train.on_spike") != "rollback" ||
          (!args.checkpoint.empty() && args.save_every > 0),
      "train.on_spike=rollback goes back to a checkpoint; add --checkpoint DIR and --save-every N");
  TESSERA_REQUIRE(
      job.config.integer("train.patience") == 0 || job.config.integer("train.eval_every") > 0,
      "train.patience={} counts evaluations; say how many steps lie between them with "
      "train.eval_every",
      job.config.integer("train.patience"));
  fit_memory(wanted, job);
  nlohmann::json startup;
  StartClock clock(startup);
  Cluster cluster = make_cluster(job, args);
  clock.mark("ranks_s");
  Training t{
      args, watch, std::move(job), std::move(cluster), startup, ReplicaCheck(args.check_replicas)};
  try {
    return run_training(t, clock);
  } catch (const CommonFailure&) {
    throw;
  } catch (const PeerFailure&) {
    t.watchdog.stop();
    settle_save(t);
    throw;
  } catch (const std::exception& e) {
    t.watchdog.stop();
    t.cluster.fail(e.what());  // so that the other ranks do not wait for this one
    settle_save(t);
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
