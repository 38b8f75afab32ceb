#include "cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/env.h"
#include "base/fail.h"
#include "base/files.h"
#include "base/printable.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "tessera/cluster.h"

namespace tessera::cli {

namespace {

/// Completes the last line of a file if a killed job left it incomplete.
void end_line(const std::string& path, std::FILE* file) {
  if (!is_file(path)) return;
  std::ifstream before(path, std::ios::ate | std::ios::binary);
  if (!before || before.tellg() <= 0) return;
  before.seekg(-1, std::ios::end);
  if (before.get() != '\n') std::fputc('\n', file);
}

std::unique_ptr<LogFile> open_file(const std::string& path, bool append, const char* flag) {
  if (path.empty()) return nullptr;
  try {
    std::FILE* const file = open_output(path, /*append=*/true);
    auto log = std::make_unique<LogFile>(path, file);
    append ? end_line(path, file) : log->clear();
    return log;
  } catch (const Error& e) {
    fail(e.kind(), "{} {}: {}", flag, path, e.what());
  }
}

/// The numbers of a step with their names from docs/reference/log-fields.md.
NamedNumbers numbers_of(const StepRecord& r) {
  NamedNumbers result = {{"loss", r.loss},
                         {"grad_norm", r.grad_norm},
                         {"lr", r.lr},
                         {"ms", r.ms},
                         {"data_ms", r.data_ms},
                         {"planned_ms", r.planned_ms},
                         {"tokens_per_s", r.tokens_per_s},
                         {"flops_per_s", r.flops_per_s},
                         {"peak_share", r.peak_share},
                         {"memory_bytes", static_cast<double>(r.memory)},
                         {"skipped", static_cast<double>(r.skipped)},
                         {"loss_scale", r.loss_scale},
                         {"slowest_rank", static_cast<double>(r.slowest_rank)},
                         {"slowest_ms", r.slowest_ms},
                         {"median_ms", r.median_ms}};
  result.insert(result.end(), r.metrics.begin(), r.metrics.end());
  return result;
}

/// A step with these metrics, all 0.
StepRecord record_of(const std::vector<std::string>& metrics) {
  std::vector<std::string> fields = {"step", "steps", "eta_s", "accuracy"};
  for (const auto& [name, value] : numbers_of({})) fields.push_back(name);
  StepRecord record;
  for (const std::string& name : metrics) {
    TESSERA_REQUIRE(
        !name.empty() && std::find(fields.begin(), fields.end(), name) == fields.end(),
        "the model has a metric '{}', which is a field of the log already; give it another name",
        name);
    record.metrics.emplace_back(name, 0);
  }
  return record;
}

/// Whether the line of a step is printed to stay, in a file and above the bar.
bool stays(int64_t step, int64_t steps) {
  const int64_t every = std::max<int64_t>(1, std::min<int64_t>(steps / 20, 50));
  return step <= 5 || step == steps || step % every == 0;
}

/// The line of a step. What a narrow terminal keeps: where it is, the loss, how long it takes yet,
/// how fast it is; then the rest.
std::vector<LinePart> parts_of(const StepRecord& r) {
  const size_t digits = fmt::formatted_size("{}", r.steps);
  std::vector<LinePart> parts = {
      {fmt::format("step {:>{}}/{}", r.step, digits, r.steps), 0},
      {fmt::format("loss {:.4f}", r.loss), 1},
      {fmt::format("grad {:.3f}", r.grad_norm), 5},
      {fmt::format("lr {:.2e}", r.lr), 6},
      {fmt::format("{:.1f} ms{}", r.ms,
                   r.planned_ms > 0 ? fmt::format(" (planned {:.1f})", r.planned_ms) : ""),
       4},
      {with_unit(r.tokens_per_s, "tok/s"), 3},
      {fmt::format("{} ({:.0f} %)", with_unit(r.flops_per_s, "FLOP/s"), 100 * r.peak_share), 7},
      {with_unit(static_cast<double>(r.memory), "B"), 8},
      {fmt::format("ETA {}", duration(r.eta_s)), 2}};
  for (const auto& [name, value] : r.metrics)
    parts.push_back({fmt::format("{} {:.4g}", printable(name), value), 9});
  if (r.loss_scale > 0)
    parts.push_back({fmt::format("scale {}, {} skipped", r.loss_scale, r.skipped), 9});
  return parts;
}

}  // namespace

Progress::Progress(bool active, bool quiet, const ProgressFiles& files, bool append, int64_t steps,
                   const std::vector<std::string>& metrics)
    : active_(active),
      quiet_(quiet),
      terminal_(launched_ranks() == 0 && isatty(STDOUT_FILENO) && !is_dumb_terminal()),
      coloured_(terminal_ && is_coloured(STDOUT_FILENO)),
      steps_(steps),
      files_(files) {
  const StepRecord fields = record_of(metrics);
  if (!active) return;
  log_ = open_file(files.log, append, "--log");
  csv_ = open_file(files.csv, append, "--csv");
  if (!files.tensorboard.empty()) events_ = std::make_unique<EventFile>(files.tensorboard);
  if (csv_ && csv_->is_empty()) {
    std::string names = "step";
    for (const auto& [name, value] : numbers_of(fields)) names += "," + name;
    csv_->append(names + '\n');
  }
}

Progress::~Progress() {
  if (bar_shown_) std::fputc('\n', stdout);
}

bool Progress::shows(int64_t step) const { return terminal_ || stays(step, steps_); }

void Progress::record(const nlohmann::json& line) {
  if (log_) log_->append(line.dump() + '\n');
}

void Progress::step(const StepRecord& r) {
  if (!active_) return;
  const std::vector<LinePart> parts = parts_of(r);
  if (stays(r.step, steps_)) inform(whole_line(parts));
  if (terminal_ && !quiet_ && r.step < r.steps) {
    const double done = static_cast<double>(r.step) / static_cast<double>(r.steps);
    // The last column stays free: some terminals wrap a line that fills it.
    const int width = std::max(0, terminal_width(STDOUT_FILENO) - 1);
    const std::string line = fitted_line(parts, done, width);
    const size_t bar = line.starts_with('[') ? line.find(']') + 1 : 0;
    std::fprintf(stdout, "\r\033[K%s%s",
                 styled(line.substr(0, bar), Colour::green, coloured_).c_str(),
                 line.substr(bar).c_str());
    std::fflush(stdout);
    bar_shown_ = true;
  }
  nlohmann::json json = {{"step", r.step}, {"steps", r.steps}, {"eta_s", r.eta_s}};
  std::string row = fmt::format("{}", r.step);
  NamedNumbers scalars;
  for (const auto& [name, value] : numbers_of(r)) {
    json[name] = json_number(value);
    row += fmt::format(",{}", value);
    scalars.emplace_back("train/" + name, value);
  }
  json["memory_bytes"] = r.memory;
  json["skipped"] = r.skipped;
  json["slowest_rank"] = r.slowest_rank;
  record(json);
  if (csv_) csv_->append(row + '\n');
  if (events_) events_->add(r.step, scalars);
}

void Progress::note(const std::string& text) {
  if (!active_) return;
  std::string lines;
  constexpr int kNarrow = 40;  // below, a step's line would be a column of words
  const int width = terminal_ ? terminal_width(STDOUT_FILENO) : 0;
  std::istringstream safe(wrapped(printable(text), width < kNarrow ? 0 : width));
  for (std::string line; std::getline(safe, line);) lines += with_label(line, coloured_) + '\n';
  std::fprintf(stdout, "%s%s", bar_shown_ ? "\r\033[K" : "", lines.c_str());
  std::fflush(stdout);
  bar_shown_ = false;
}

void Progress::inform(const std::string& text) {
  if (!quiet_) note(text);
}

void Progress::evaluation(int64_t step, double loss, double accuracy, const NamedNumbers& metrics) {
  nlohmann::json line = {{"step", step}, {"eval_loss", json_number(loss)}};
  std::string text = fmt::format("eval at step {}: loss {:.4f}", step, loss);
  if (accuracy >= 0) {
    line["eval_accuracy"] = accuracy;
    text += fmt::format(", accuracy {:.2f} %", 100 * accuracy);
  }
  NamedNumbers scalars = {{"eval/loss", loss}};
  for (const auto& [name, value] : metrics) {
    line["eval_" + name] = json_number(value);
    text += fmt::format(", {} {:.4g}", name, value);
    scalars.emplace_back("eval/" + name, value);
  }
  inform(text);
  if (!active_) return;
  record(line);
  if (accuracy >= 0) scalars.emplace_back("eval/accuracy", accuracy);
  if (events_) events_->add(step, scalars);
}

void Progress::samples(int64_t step,
                       const std::vector<std::pair<std::string, std::string>>& texts) {
  if (!active_) return;
  nlohmann::json all = nlohmann::json::array();
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto& [prompt, text] = texts[i];
    note(fmt::format("sample at step {}: {}", step, text));
    all.push_back({{"prompt", prompt}, {"text", text}});
    if (events_) events_->add_text(step, fmt::format("sample/{}", i), text);
  }
  record({{"step", step}, {"samples", all}});
}

}  // namespace tessera::cli
