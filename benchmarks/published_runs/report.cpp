#include "benchmarks/published_runs/report.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/fail.h"
#include "benchmarks/published_runs/runs.h"

namespace tessera::runs {

namespace {

/// "a100" of "A100-80GB".
std::string family(const Run& run) {
  std::string kind = lower_case(run.gpu_kind);
  return kind.substr(0, kind.find_first_of("-_ "));
}

/// True for rows that constants were fitted on.
bool calibrates(const Run& run) {
  const std::string source = lower_case(run.source);
  const bool vtrain = source.find("vtrain") != std::string::npos;
  const bool titan = source.find("torchtitan") != std::string::npos;
  if (source.find("megatron-bridge") != std::string::npos) {
    const std::string gpu = family(run);
    // Rates of GB300: Llama 3 8B in one release of Megatron-Bridge's summary. Products of odd
    // sizes: GPT-OSS.
    if (run.release == 25.11 && run.params < 9e9 && gpu == "gb300") return true;
    if (run.biased && (run.release == 26.06 || run.release == 26.0601) && gpu.starts_with("gb"))
      return true;
  }
  return source.find("korthikanti") != std::string::npos ||
         (titan && (source.find("table 1") != std::string::npos ||
                    source.find("table 3") != std::string::npos)) ||
         (vtrain && run.params < 4e9);
}

/// A source's name without details in parentheses.
std::string title(const std::string& source) { return source.substr(0, source.find(" (")); }

/// Model FLOP/s of one device: the median of the calibration rows, by family of GPU.
struct NullRate {
  const char* family;
  double rate;
};
constexpr NullRate kNullRates[] = {{"a100", 86.5e12}, {"h100", 402.5e12}};

/// A family without calibration rows gets the largest known rate.
double null_seconds(const Run& run) {
  double rate = 0;
  for (const NullRate& r : kNullRates) {
    rate = std::max(rate, r.rate);
    if (family(run) == r.family) {
      rate = r.rate;
      break;
    }
  }
  return model_flops(run) / (static_cast<double>(run.gpus) * rate);
}

/// Adds up the rows of one report.
struct Sum {
  double error = 0, null_error = 0;
  int rows = 0;
  std::vector<std::pair<double, double>> pairs = {};

  void add(const RunReport& row) {
    error += row.error;
    null_error += row.null_error;
    ++rows;
    pairs.emplace_back(row.predicted, row.measured);
  }
  double mean() const { return rows > 0 ? error / rows : 0; }
  double null_mean() const { return rows > 0 ? null_error / rows : 0; }
};

double kendall_tau(const std::vector<std::pair<double, double>>& pairs) {
  double sum = 0;
  int64_t counted = 0;
  for (size_t i = 0; i < pairs.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const double a = pairs[i].first - pairs[j].first, b = pairs[i].second - pairs[j].second;
      if (a == 0 || b == 0) continue;
      sum += (a > 0) == (b > 0) ? 1 : -1;
      ++counted;
    }
  }
  return counted > 0 ? sum / static_cast<double>(counted) : 0;
}

void predict_row(const Run& run, const std::string& path, const Machine* machine, RunReport& row) {
  Prediction p;
  try {
    p = predict(run, machine != nullptr ? *machine : machine_of(run));
  } catch (const Error& e) {
    const std::string text = fmt::format("{}, line {}: {}", path, run.line, e.what());
    if (e.kind() != ErrorKind::usage) throw Error(e.kind(), text);
    row.failure = text;
    return;
  }
  row.micro_batch = p.micro_batch;
  row.calibrates = calibrates(run);
  row.measured = run.seconds;
  row.predicted = p.seconds;
  row.compute = p.compute, row.tensor = p.tensor, row.data = p.data;
  row.bubble = p.bubble, row.update = p.update, row.memory = p.memory;
  row.fits = p.fits, row.ran_out = run.ran_out;
  row.null = null_seconds(run);
  if (run.seconds <= 0) return;
  row.error = std::abs(p.seconds / run.seconds - 1);
  row.null_error = std::abs(row.null / run.seconds - 1);
}

/// Sums by name, in the order in which names appear.
class Sums {
 public:
  void add(const std::string& name, const RunReport& row) {
    auto it =
        std::find_if(sums_.begin(), sums_.end(), [&](const auto& s) { return s.first == name; });
    if (it == sums_.end()) it = sums_.insert(it, {name, {}});
    it->second.add(row);
  }
  std::vector<SourceReport> reports() const {
    std::vector<SourceReport> reports;
    for (const auto& [name, sum] : sums_)
      reports.push_back({name, sum.rows, sum.mean(), sum.null_mean(), kendall_tau(sum.pairs)});
    return reports;
  }

 private:
  std::vector<std::pair<std::string, Sum>> sums_;
};

void summarize(RunsReport& report) {
  Sum all, test;
  Sums sources, systems, frameworks;
  for (const RunReport& row : report.rows) {
    report.failed += !row.failure.empty();
    if (!row.failure.empty()) continue;
    report.ran_out += row.ran_out;
    report.predicted_out += !row.fits;
    report.both_out += row.ran_out && !row.fits;
    if (row.measured <= 0) continue;
    all.add(row);
    if (!row.calibrates) test.add(row);
    sources.add(row.source, row);
    systems.add(row.system, row);
    frameworks.add(row.system.substr(0, row.system.find(' ')), row);
  }
  report.by_source = sources.reports();
  report.by_system = systems.reports();
  report.by_framework = frameworks.reports();
  report.timed = all.rows;
  report.error = all.mean();
  report.null_error = all.null_mean();
  report.tau = kendall_tau(all.pairs);
  report.test_rows = test.rows;
  report.test_error = test.mean();
  report.test_null_error = test.null_mean();
}

}  // namespace

RunsReport simulate_runs(const std::string& path, const Machine* machine, bool leave_out) {
  RunsReport report;
  for (Run& run : read_runs(path)) {
    run.left_out = leave_out;
    RunReport& row = report.rows.emplace_back();
    row.system = run.system;
    row.model = run.model;
    row.source = title(run.source);
    row.gpu = run.gpu_kind;
    row.line = run.line;
    row.gpus = run.gpus;
    row.failure = run.failure;
    if (row.failure.empty()) predict_row(run, path, machine, row);
  }
  summarize(report);
  return report;
}

}  // namespace tessera::runs
