// simulate: a model on a machine that nobody here has, or published runs beside what they took.
#include "tessera/simulate.h"

#include <cmath>
#include <cstdio>

#include "base/fail.h"
#include "base/files.h"
#include "cli/commands.h"
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
  json["by_axes"] = nlohmann::json::array();
  for (const SimulatedAxes& a : s.by_axes)
    json["by_axes"].push_back(
        {{"axes", a.axes}, {"bytes", a.bytes}, {"seconds", a.seconds}, {"exposed", a.exposed}});
  return json;
}

}  // namespace

int simulate(const Arguments& args, const std::vector<ModelSpec>& models) {
  require_place_for(args.json);
  require_place_for(args.trace);
  if (!args.runs.empty()) return simulate_published(args);
  const std::optional<Machine> machine = find_machine(args);
  require(machine.has_value(),
          "simulate needs --machine, a profile ({}) or a TOML file; or measure this machine with "
          "tessera calibrate",
          fmt::join(Machine::names(), ", "));
  const Job job = resolve(args, models, false);
  Trainer t;
  build_trainer(job, t, false);
  CompileOptions options{job.mesh, job.layout, t.functions, 0, 1};
  set_schedule(job, options);
  SimulateOptions how;
  how.stragglers = args.stragglers;
  how.failure_hours = args.failure_hours;
  how.checkpoint_seconds = args.checkpoint_seconds;
  how.restart_seconds = args.restart_seconds;
  const Simulation s = tessera::simulate(t.graph, options, *machine, how);
  fmt::print("{} on mesh {} ({} ranks of {}), layout {}\n", job.spec->name, job.mesh.to_string(),
             s.ranks, s.machine, job.layout.to_string());
  fmt::print("a step: {:.3f} ms = {:.3f} compute + {:.3f} slowed by transfers + {:.3f} exposed\n",
             1e3 * s.seconds, 1e3 * s.compute, 1e3 * s.slowed, 1e3 * s.exposed);
  for (const SimulatedAxes& a : s.by_axes)
    fmt::print("  over {:<16} {:>14} B  {:9.3f} ms ({:.3f} exposed)\n", a.axes, a.bytes,
               1e3 * a.seconds, 1e3 * a.exposed);
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
