#include <chrono>
#include <cmath>

#include "base/fail.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "cli/watch.h"
#include "tessera/build_info.h"
#include "tessera/checkpoint.h"
#include "tessera/trace.h"

namespace tessera::cli {

namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// FLOP/s of matrix products on the ranks of this mesh together: what the log's share of the peak
/// refers to.
double measured_peak(const Mesh& mesh, Cluster& cluster, int threads) {
  Graph g;
  const int64_t n = 384, copies = mesh.size();
  const Dim ranks("ranks", copies), m("m", n), k("k", n), c("c", n);
  Tensor a = g.input("a", {ranks, m, k}, DType::float32), b = g.input("b", {k, c}, DType::float32);
  Tensor y = einsum({a, b}, {ranks, m, c}).named("y");
  std::string axes;
  for (const MeshAxis& axis : mesh.axes()) axes += (axes.empty() ? "" : "+") + axis.name;
  Session session(g, cluster,
                  {mesh, Layout::parse("ranks:" + axes), {{"run", {y}, false}}, 0, threads});
  double best = 0;
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < 3 || (seconds_since(start) < 0.05 && i < 100); ++i) {
    const Clock::time_point begin = Clock::now();
    session.run("run");
    best = std::max(best, 2.0 * static_cast<double>(n * n * n * copies) / seconds_since(begin));
  }
  return best;
}

struct Training {
  const Arguments& args;
  Watch watch;
  Job job;
  Cluster cluster;
  Trainer trainer = {};
  std::unique_ptr<DataSource> source = {};
  std::unique_ptr<Batcher> batcher = {};
  std::unique_ptr<Trace> trace = {};
  std::unique_ptr<Session> session = {};
  std::unique_ptr<Checkpoints> checkpoints = {};
  std::unique_ptr<Progress> progress = {};
  int64_t first_step = 0;
};

void prepare(Training& t) {
  const Config& c = t.job.config;
  require(c.integer("train.batch") >= 1 && c.integer("train.steps") >= 1,
          "train.batch {} and train.steps {} must be at least 1", c.integer("train.batch"),
          c.integer("train.steps"));
  t.source = t.job.spec->data(c, false);
  BatchOptions options;
  options.seed = static_cast<uint64_t>(c.integer("train.seed"));
  t.batcher = std::make_unique<Batcher>(*t.source, c.integer("train.batch"), options);
  build_trainer(t.job, t.trainer, false);
  CompileOptions compile{
      t.job.mesh,          t.job.layout,
      t.trainer.functions, options.seed,
      threads_of(t.job),   {t.trainer.model.loss.name(), t.trainer.minimized.gradient_norm.name()},
      t.watch.keep(),      [&t](const std::string& line) { t.progress->note(line); }};
  compile.device = t.job.device;
  if (!t.args.trace.empty()) t.trace = std::make_unique<Trace>();
  compile.trace = t.trace.get();
  t.session = std::make_unique<Session>(t.trainer.graph, t.cluster, compile);
}

/// The newest checkpoint if the job goes on from it. Before anything is written.
std::optional<Checkpoint> open_checkpoints(Training& t) {
  if (t.args.checkpoint.empty()) return {};
  t.checkpoints =
      std::make_unique<Checkpoints>(t.cluster, t.args.checkpoint, static_cast<int>(t.args.keep));
  const std::optional<Checkpoint> latest = t.checkpoints->latest();
  if (!t.args.resume) {
    require(!latest,
            "'{}' holds checkpoints of an earlier run (the last at step {}); add --resume to go on "
            "from it, or "
            "choose another --checkpoint directory",
            t.args.checkpoint, latest ? latest->step : 0);
  }
  return latest;
}

void resume(Training& t, const std::optional<Checkpoint>& latest) {
  if (!latest) {
    t.progress->note("no checkpoint yet: starting from step 0");
    return;
  }
  if (!latest->warning.empty()) t.progress->note("warning: " + latest->warning);
  t.first_step = t.checkpoints->load(*t.session, latest->path).step;
  t.progress->note(fmt::format("resumed from {} at step {}", latest->path, t.first_step));
}

void save(Training& t, int64_t step) {
  t.checkpoints->save(*t.session, step,
                      {{"config", t.job.config.to_toml()},
                       {"seed", t.job.config.text("train.seed")},
                       {"program", fmt::format("{:016x}", t.session->program_hash())}});
}

int64_t parameters_of(Training& t) {
  int64_t elements = 0;
  for (const Tensor& p : t.trainer.graph.parameters()) elements += p.shape().elements();
  return elements;
}

/// The whole configuration, a line a table, and what came of it.
std::string banner(Training& t) {
  std::string text;
  for (const char* table : {"model", "train", "data"}) {
    text += fmt::format("{:<7}", table);
    for (const ConfigKey& k : t.job.config.keys()) {
      const size_t dot = k.name.find('.');
      if (k.name.substr(0, dot) == table)
        text += fmt::format(" {}={}", k.name.substr(dot + 1), k.value);
    }
    text += '\n';
  }
  return text + fmt::format(
                    "mesh    {} ({} ranks, {})\nlayout  {}\nmemory  {} parameters; "
                    "{} persistent + {} transient per rank",
                    t.job.mesh.to_string(), t.cluster.size(), t.cluster.backend(),
                    t.job.layout.to_string(), parameters_of(t),
                    with_unit(static_cast<double>(t.session->persistent_bytes()), "B"),
                    with_unit(static_cast<double>(t.session->transient_bytes()), "B"));
}

/// The first line of a log, and of its part after each --resume.
nlohmann::json header(Training& t) {
  nlohmann::json config;
  for (const ConfigKey& k : t.job.config.keys()) config[k.name] = k.value;
  return {{"config", config},
          {"version", build_info().version},
          {"program", fmt::format("{:016x}", t.session->program_hash())},
          {"ranks", t.cluster.size()},
          {"backend", t.cluster.backend()},
          {"parameters", parameters_of(t)},
          {"first_step", t.first_step}};
}

/// Errors of a step say which.
void run_step(Training& t, int64_t step) {
  try {
    t.session->run("train");
  } catch (const Error& e) {
    throw Error(e.kind(), fmt::format("step {}: {}", step + 1, e.what()));
  }
}

/// One step, timed, with its fields but the expected end.
StepRecord train_step(Training& t, int64_t step, double peak) {
  const Config& c = t.job.config;
  const Clock::time_point begin = Clock::now();
  t.session->set_step(step);
  t.batcher->feed(*t.session, step);
  feed_scalar(*t.session, t.trainer.lr, learning_rate(t.job, step));
  run_step(t, step);
  StepRecord r;
  r.loss = t.session->fetch_scalar(t.trainer.model.loss.name());
  r.grad_norm = t.session->fetch_scalar(t.trainer.minimized.gradient_norm.name());
  const double seconds = seconds_since(begin);
  r.step = step + 1;
  r.steps = c.integer("train.steps");
  r.lr = learning_rate(t.job, step);
  r.ms = seconds * 1e3;
  r.tokens_per_s = static_cast<double>(c.integer("train.batch") * t.job.spec->tokens(c)) / seconds;
  r.flops_per_s = static_cast<double>(t.session->flops("train")) * t.cluster.size() / seconds;
  r.peak_share = peak > 0 ? r.flops_per_s / peak : 0;
  r.memory = t.session->persistent_bytes() + t.session->transient_bytes();
  return r;
}

/// Returns the report of --json.
nlohmann::json train_steps(Training& t, double peak) {
  const int64_t steps = t.job.config.integer("train.steps");
  const int64_t every = t.job.config.integer("train.eval_every");
  nlohmann::json report = {{"step", t.first_step}};
  std::unique_ptr<Evaluator> evaluator;
  double mean_ms = 0;
  for (int64_t step = t.first_step; step < steps; ++step) {
    StepRecord r = train_step(t, step, peak);
    mean_ms = step == t.first_step ? r.ms : 0.9 * mean_ms + 0.1 * r.ms;
    r.eta_s = mean_ms * 1e-3 * static_cast<double>(steps - step - 1);
    t.progress->step(r);
    t.watch.after_step(*t.session, t.trainer.graph, step + 1, *t.progress);
    report["step"] = step + 1;
    report["loss"] = json_number(r.loss);
    report["grad_norm"] = json_number(r.grad_norm);
    report["ms"] = mean_ms;
    const bool last = step + 1 == steps;
    if (t.checkpoints && (last || (t.args.save_every > 0 && (step + 1) % t.args.save_every == 0)))
      save(t, step + 1);
    if (last || (every > 0 && (step + 1) % every == 0)) {
      if (!evaluator) evaluator = std::make_unique<Evaluator>(t.job, t.cluster);
      const Evaluation e = evaluator->run(*t.session);
      t.progress->evaluation(step + 1, e.loss, e.accuracy);
      report["eval_loss"] = json_number(e.loss);
      if (e.accuracy >= 0) report["eval_accuracy"] = e.accuracy;
    }
  }
  return report;
}

}  // namespace

int train(const Arguments& args, const std::vector<ModelSpec>& models) {
  require(!args.checkpoint.empty() || (!args.resume && args.save_every == 0),
          "--resume and --save-every need --checkpoint DIR");
  require(args.save_every >= 0, "--save-every {} is negative; 0 saves at the end only",
          args.save_every);
  require_place_for(args.json);
  require_place_for(args.trace);
  Watch watch(args);
  Job job = resolve(args, models, false);
  fit_memory(args, job);
  Cluster cluster = make_cluster(job, args);
  Training t{args, watch, std::move(job), std::move(cluster)};
  prepare(t);
  const std::optional<Checkpoint> latest = open_checkpoints(t);
  t.progress = std::make_unique<Progress>(t.cluster.is_root(), args.log, args.resume,
                                          t.job.config.integer("train.steps"));
  t.progress->note(banner(t));
  if (args.resume) resume(t, latest);
  const nlohmann::json head = header(t);
  t.progress->record(head.dump());
  nlohmann::json report = train_steps(t, measured_peak(t.job.mesh, t.cluster, threads_of(t.job)));
  report.update(head);
  if (t.trace) t.trace->write(t.cluster, args.trace);
  if (t.cluster.is_root()) write_report(args.json, report);
  return 0;
}

int eval(const Arguments& args, const std::vector<ModelSpec>& models) {
  require(!args.checkpoint.empty(), "eval needs --checkpoint DIR");
  require_place_for(args.json);
  Job job = resolve(args, models, false);
  Cluster cluster = make_cluster(job, args);
  const std::optional<Checkpoint> latest = find_latest(args.checkpoint);
  require(latest.has_value(), "'{}' holds no checkpoint", args.checkpoint);
  take_stored_model(job, *latest);
  Evaluator evaluator(job, cluster);
  const Evaluation e = evaluator.run_checkpoint(latest->path);
  if (cluster.is_root()) {
    fmt::print("{}: step {}, loss {:.4f} over {} held-out examples\n", latest->path, latest->step,
               e.loss, evaluator.examples());
    nlohmann::json report = {{"checkpoint", latest->path},
                             {"step", latest->step},
                             {"eval_loss", json_number(e.loss)},
                             {"examples", evaluator.examples()}};
    if (e.accuracy >= 0) {
      fmt::print("accuracy {:.2f} %\n", 100 * e.accuracy);
      report["eval_accuracy"] = e.accuracy;
    }
    write_report(args.json, report);
  }
  return 0;
}

}  // namespace tessera::cli
