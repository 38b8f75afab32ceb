// simulate: a model on a machine that nobody here has, or published runs beside what they took.
#include "tessera/simulate.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/fail.h"
#include "base/files.h"
#include "cli/planned.h"
#include "cli/report.h"

namespace tessera::cli {

namespace {

nlohmann::json to_json(const RunsReport& report) {
  nlohmann::json json = {{"error", report.error},
                         {"null_error", report.null_error},
                         {"tau", report.tau},
                         {"timed", report.timed},
                         {"test_error", report.test_error},
                         {"test_null_error", report.test_null_error},
                         {"test_rows", report.test_rows}};
  if (report.ran_out > 0) {
    json["out_of_memory"] = {
        {"rows", report.ran_out},
        {"recall", static_cast<double>(report.both_out) / report.ran_out},
        {"precision",
         report.predicted_out > 0
             ? nlohmann::json(static_cast<double>(report.both_out) / report.predicted_out)
             : nlohmann::json()}};
  }
  json["rows"] = nlohmann::json::array();
  for (const RunReport& r : report.rows) {
    nlohmann::json row = {{"line", r.line},           {"system", r.system},
                          {"model", r.model},         {"gpu", r.gpu},
                          {"gpus", r.gpus},           {"micro_batch", r.micro_batch},
                          {"source", r.source},       {"calibrates", r.calibrates},
                          {"predicted", r.predicted}, {"null", r.null},
                          {"compute", r.compute},     {"tensor", r.tensor},
                          {"data", r.data},           {"bubble", r.bubble},
                          {"update", r.update},       {"memory", r.memory},
                          {"fits", r.fits},           {"out_of_memory", r.ran_out}};
    if (!r.failure.empty()) {
      for (const char* unknown : {"predicted", "compute", "tensor", "data", "bubble", "update",
                                  "memory", "fits", "null", "micro_batch"})
        row[unknown] = nullptr;
      row["failure"] = r.failure;
    }
    if (r.measured > 0) {
      row["measured"] = r.measured;
      row["error"] = r.error;
      row["null_error"] = r.null_error;
    }
    json["rows"].push_back(std::move(row));
  }
  json["by_source"] = nlohmann::json::object();
  for (const SourceReport& s : report.by_source)
    json["by_source"][s.source] = {
        {"rows", s.rows}, {"error", s.error}, {"null_error", s.null_error}, {"tau", s.tau}};
  return json;
}

/// "1 row", "2 rows".
std::string rows_text(int rows) { return fmt::format("{} row{}", rows, rows == 1 ? "" : "s"); }

std::string errors_text(int rows, double error, double null_error) {
  if (rows == 0) return "error -";
  return fmt::format("error {:.1f} % (one rate: {:.1f} %)", 100 * error, 100 * null_error);
}

/// Of percents with one digit.
double without_minus_zero(double percent) { return std::abs(percent) < 0.05 ? 0 : percent; }

int simulate_published(const Arguments& args) {
  require(args.model.empty(), "simulate takes a model or --runs FILE, not both ('{}' and '{}')",
          args.model, args.runs);
  std::optional<Machine> machine;
  if (!args.machine.empty()) machine = Machine::load(args.machine);
  const RunsReport report = simulate_runs(args.runs, machine ? &*machine : nullptr);
  for (const RunReport& r : report.rows) {
    if (!r.failure.empty()) {
      fmt::print("{:<28.28} {:<14.14} failed: {}\n", r.system, r.model, r.failure);
      continue;
    }
    fmt::print("{:<28.28} {:<14.14} {:>5} gpus {:>9.3f} s", r.system, r.model, r.gpus, r.predicted);
    if (r.measured > 0)
      fmt::print(" (measured {:.3f}, {:+.1f} %{})", r.measured,
                 without_minus_zero(100 * (r.predicted / r.measured - 1)),
                 r.calibrates ? ", calibration" : "");
    fmt::print("{}\n", r.fits ? "" : ", may not fit");
  }
  for (const SourceReport& s : report.by_source)
    fmt::print("{}: {}, error {:.1f} % (one rate for each kind of GPU: {:.1f} %), tau {:.2f}\n",
               s.source, rows_text(s.rows), 100 * s.error, 100 * s.null_error, s.tau);
  fmt::print("all {} with a time: {}, tau {}; {} that nothing was fitted on: {}\n",
             rows_text(report.timed), errors_text(report.timed, report.error, report.null_error),
             report.timed > 1 ? fmt::format("{:.2f}", report.tau) : "-",
             rows_text(report.test_rows),
             errors_text(report.test_rows, report.test_error, report.test_null_error));
  if (report.ran_out > 0)
    fmt::print("out of memory: {}, {} predicted, {} of them rightly\n", rows_text(report.ran_out),
               report.predicted_out, report.both_out);
  if (report.failed > 0) fmt::print("failed: {}\n", rows_text(report.failed));
  write_report(args.json, to_json(report));
  require(report.failed < static_cast<int>(report.rows.size()),
          "no row of '{}' can be predicted; the first: {}", args.runs, report.rows[0].failure);
  return 0;
}

nlohmann::json to_json(const Simulation& s) {
  nlohmann::json json = {{"machine", s.machine},
                         {"ranks", s.ranks},
                         {"seconds", s.seconds},
                         {"compute", s.compute},
                         {"slowed", s.slowed},
                         {"exposed", s.exposed},
                         {"with_stragglers", s.with_stragglers},
                         {"goodput", s.goodput},
                         {"checkpoint_every", s.checkpoint_every},
                         {"memory", s.memory}};
  if (s.stages > 1) {
    json["stages"] = s.stages;
    json["schedule"] = s.chunks > 1 ? "interleaved" : "1f1b";
    json["interleave"] = s.chunks;
    json["microbatches"] = s.microbatches;
    json["bubble"] = s.bubble;
    json["transfer"] = s.transfer;
    json["handed"] = s.handed;
  }
  json["by_axes"] = nlohmann::json::array();
  for (const SimulatedAxes& a : s.by_axes)
    json["by_axes"].push_back(
        {{"axes", a.axes}, {"bytes", a.bytes}, {"seconds", a.seconds}, {"exposed", a.exposed}});
  return json;
}

Simulation simulate_whole(const Job& job, const Machine& machine, const SimulateOptions& how) {
  Trainer t;
  build_trainer(job, t, false);
  CompileOptions options{job.mesh, job.layout, t.functions, 0, 1};
  set_schedule(job, options);
  return tessera::simulate(t.graph, options, machine, how);
}

/// --interleave, or all numbers of chunks that the layers can be dealt to.
std::vector<int64_t> chunks_of(const Arguments& args, const PlanModel& model,
                               int64_t microbatches) {
  constexpr int64_t kMost = 8;
  require(args.schedule.empty() || args.schedule == "1f1b" || args.schedule == "interleaved",
          "--schedule '{}' is neither 1f1b nor interleaved", args.schedule);
  require(args.schedule != "1f1b" || args.interleave <= 1,
          "--schedule 1f1b has one chunk of layers on a stage, and --interleave says {}; leave one "
          "of the two out",
          args.interleave);
  if (args.interleave > 0) return {args.interleave};
  if (args.schedule != "interleaved") return {1};
  std::vector<int64_t> all;
  for (int64_t v = 2; v <= kMost; ++v) {
    if (model.layers % (args.stages * v) == 0) all.push_back(v);
  }
  require(!all.empty() && microbatches % args.stages == 0,
          "--schedule interleaved deals {} layers to {} stages in 2 to {} chunks each, all alike, "
          "and {} microbatches to these in turn; give other --stages, layers or microbatches",
          model.layers, args.stages, kMost, microbatches);
  return all;
}

Simulation simulate_stages(const Arguments& args, const Job& job, const Machine& machine,
                           const SimulateOptions& how) {
  const int64_t parts = job.config.integer("train.microbatches");
  require(parts >= 2,
          "--stages {} works on microbatches, and train.microbatches is {}; say --set "
          "microbatches={} or more",
          args.stages, parts, std::max<int64_t>(2, args.stages));
  PlanModel model = model_of(job);
  model.microbatches = {1};  // layers are told apart in a batch of one part
  const PlanBuild build{model.layers, job.config.text("train.recompute"),
                        job.config.text("train.regather"), parts};
  std::optional<Simulation> best;
  for (const int64_t chunks : chunks_of(args, model, parts)) {
    Simulation s =
        simulate_pipeline(model, job.mesh, job.layout, build, args.stages, chunks, machine, how);
    if (!best || s.seconds < best->seconds) best = std::move(s);
  }
  return *best;
}

void print(const Job& job, const Simulation& s) {
  fmt::print("{} on {}mesh {} ({} ranks of {}), layout {}\n", job.spec->name,
             s.stages > 1 ? fmt::format("{} stages, each ", s.stages) : "", job.mesh.to_string(),
             s.ranks, s.machine, job.layout.to_string());
  if (s.stages > 1)
    fmt::print(
        "{}, {} microbatches; each hands on {} B in {:.3f} ms\n",
        s.chunks > 1 ? fmt::format("interleaved 1F1B with {} chunks a stage", s.chunks) : "1F1B",
        s.microbatches, s.handed, 1e3 * s.transfer);
  fmt::print("a step: {:.3f} ms = {:.3f} compute + {:.3f} slowed by transfers + {:.3f} exposed{}\n",
             1e3 * s.seconds, 1e3 * s.compute, 1e3 * s.slowed, 1e3 * s.exposed,
             s.stages > 1 ? fmt::format(" + {:.3f} bubble", 1e3 * s.bubble) : "");
  for (const SimulatedAxes& a : s.by_axes)
    fmt::print("  over {:<16} {:>14} B  {:9.3f} ms ({:.3f} exposed)\n", a.axes, a.bytes,
               1e3 * a.seconds, 1e3 * a.exposed);
}

}  // namespace

int simulate(const Arguments& args, const std::vector<ModelSpec>& models) {
  require_place_for(args.json);
  require_place_for(args.trace);
  if (!args.runs.empty()) return simulate_published(args);
  require(args.stages > 0 || (args.schedule.empty() && args.interleave == 0),
          "--schedule and --interleave are of a pipeline; say of how many --stages");
  const std::optional<Machine> machine = find_machine(args);
  require(machine.has_value(),
          "simulate needs --machine, a profile ({}) or a TOML file; or measure this machine with "
          "tessera calibrate",
          fmt::join(Machine::names(), ", "));
  require(args.stages <= 1 || !is_automatic(resolve_without_plan(args, models).layout),
          "--stages {} with a layout that is left to the planner: tessera plan --devices N "
          "--pipeline chooses layouts of stages",
          args.stages);
  const Job job = resolve(args, models, false);
  SimulateOptions how;
  how.stragglers = args.stragglers;
  how.failure_hours = args.failure_hours;
  how.checkpoint_seconds = args.checkpoint_seconds;
  how.restart_seconds = args.restart_seconds;
  const Simulation s = args.stages > 1 ? simulate_stages(args, job, *machine, how)
                                       : simulate_whole(job, *machine, how);
  print(job, s);
  if (args.stragglers > 0)
    fmt::print("with the slowest of {} ranks: {:.3f} ms\n", s.ranks, 1e3 * s.with_stragglers);
  if (args.failure_hours > 0)
    fmt::print("goodput {:.1f} % with a checkpoint every {:.0f} s\n", 100 * s.goodput,
               s.checkpoint_every);
  fmt::print("memory on each rank: {} B\n", s.memory);
  write_text_file(args.trace, to_trace(s));
  write_report(args.json, to_json(s));
  return 0;
}

}  // namespace tessera::cli
