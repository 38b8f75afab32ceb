// bench_published_runs FILE.csv [--json FILE] [--machine NAME|FILE] [--leave-out]: predictions by
// the simulator beside published training runs. docs/how-to/simulating.md describes the columns of
// the file. Uses more than the public API: a run is composed from the parts of a Program.
#include <CLI/CLI.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/fail.h"
#include "base/files.h"
#include "benchmarks/published_runs/report.h"

namespace tessera::runs {

namespace {

nlohmann::json to_json(const std::vector<SourceReport>& reports) {
  nlohmann::json json = nlohmann::json::object();
  for (const SourceReport& s : reports)
    json[s.source] = {
        {"rows", s.rows}, {"error", s.error}, {"null_error", s.null_error}, {"tau", s.tau}};
  return json;
}

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
  json["by_source"] = to_json(report.by_source);
  json["by_system"] = to_json(report.by_system);
  json["by_framework"] = to_json(report.by_framework);
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

void print(const RunsReport& report, bool by_system) {
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
  const auto print_sums = [](const char* kind, const std::vector<SourceReport>& reports) {
    for (const SourceReport& s : reports)
      fmt::print("{}{}: {}, error {:.1f} % (one rate for each kind of GPU: {:.1f} %), tau {:.2f}\n",
                 kind, s.source, rows_text(s.rows), 100 * s.error, 100 * s.null_error, s.tau);
  };
  print_sums("", by_system ? report.by_system : report.by_source);
  if (by_system) print_sums("all of ", report.by_framework);
  fmt::print("all {} with a time: {}, tau {}; {} that nothing was fitted on: {}\n",
             rows_text(report.timed), errors_text(report.timed, report.error, report.null_error),
             report.timed > 1 ? fmt::format("{:.2f}", report.tau) : "-",
             rows_text(report.test_rows),
             errors_text(report.test_rows, report.test_error, report.test_null_error));
  if (report.ran_out > 0)
    fmt::print("out of memory: {}, {} predicted, {} of them rightly\n", rows_text(report.ran_out),
               report.predicted_out, report.both_out);
  if (report.failed > 0) fmt::print("failed: {}\n", rows_text(report.failed));
}

int report_runs(const std::string& path, const std::string& machine, const std::string& json,
                bool leave_out) {
  require_writable(json);
  std::optional<Machine> one;
  if (!machine.empty()) one = Machine::load(machine);
  const RunsReport report = simulate_runs(path, one ? &*one : nullptr, leave_out);
  print(report, leave_out);
  write_text_file(json, json.empty() ? "" : to_json(report).dump(2) + "\n");
  TESSERA_REQUIRE(report.failed < static_cast<int>(report.rows.size()),
                  "no row of '{}' can be predicted; the first: {}", path, report.rows[0].failure);
  return 0;
}

}  // namespace

}  // namespace tessera::runs

int main(int argc, char** argv) try {
  CLI::App app("Predicts published training runs and compares with what was measured.");
  std::string path, machine, json;
  app.add_option("file", path, "A CSV file of published runs (docs/how-to/simulating.md).")
      ->required();
  app.add_option("--machine", machine, "A profile for all rows, instead of each row's gpu_kind.");
  app.add_option("--json", json, "Writes the report to this file.");
  bool leave_out = false;
  app.add_flag("--leave-out", leave_out,
               "Predicts no row with what was fitted on a row of its system; sums by system.");
  CLI11_PARSE(app, argc, argv);
  return tessera::runs::report_runs(path, machine, json, leave_out);
} catch (const tessera::Error& e) {
  fmt::print(stderr, "bench_published_runs: {}\n", e.what());
  return 1;
}
