// simulate: a model on a machine that nobody here has, or published runs beside what they took.
#include "tessera/simulate.h"

#include <cstdio>

#include "base/fail.h"
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

int simulate_published(const Arguments& args) {
  require(args.model.empty(), "simulate takes a model or --runs FILE, not both ('{}' and '{}')",
          args.model, args.runs);
  std::optional<Machine> machine;
  if (!args.machine.empty()) machine = Machine::load(args.machine);
  const RunsReport report = simulate_runs(args.runs, machine ? &*machine : nullptr);
  for (const RunReport& r : report.rows) {
    fmt::print("{:<28.28} {:<14.14} {:>5} gpus {:>9.3f} s", r.system, r.model, r.gpus, r.predicted);
    if (r.measured > 0)
      fmt::print(" (measured {:.3f}, {:+.1f} %{})", r.measured,
                 100 * (r.predicted / r.measured - 1), r.calibrates ? ", calibration" : "");
    fmt::print("{}\n", r.fits ? "" : ", may not fit");
  }
  for (const SourceReport& s : report.by_source)
    fmt::print(
        "{}: {} rows, error {:.1f} % (one rate for each kind of GPU: {:.1f} %), tau {:.2f}\n",
        s.source, s.rows, 100 * s.error, 100 * s.null_error, s.tau);
  fmt::print("all {} timed rows: error {:.1f} % (one rate: {:.1f} %), tau {:.2f}; ", report.timed,
             100 * report.error, 100 * report.null_error, report.tau);
  fmt::print("{} rows that nothing was fitted on: {:.1f} % (one rate: {:.1f} %)\n",
             report.test_rows, 100 * report.test_error, 100 * report.test_null_error);
  if (report.ran_out > 0)
    fmt::print("out of memory: {} rows, {} predicted, {} of them rightly\n", report.ran_out,
               report.predicted_out, report.both_out);
  write_report(args.json, to_json(report));
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

void write_text(const std::string& path, const std::string& text) {
  if (path.empty()) return;
  FILE* file = std::fopen(path.c_str(), "w");
  const bool ok = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (file == nullptr || std::fclose(file) != 0 || !ok)
    fail(ErrorKind::io, "cannot write '{}'", path);
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
  write_text(args.trace, to_trace(s));
  write_report(args.json, to_json(s));
  return 0;
}

}  // namespace tessera::cli
