#include "cli/progress.h"

#include <unistd.h>

#include "base/fail.h"
#include "cli/report.h"
#include "tessera/cluster.h"

namespace tessera::cli {

std::string with_unit(double value, const char* unit) {
  static const char* prefixes[] = {"", "k", "M", "G", "T", "P"};
  int p = 0;
  while (value >= 1000 && p < 5) value /= 1000, ++p;
  return fmt::format("{:.{}f} {}{}", value,
                     value < 10    ? 2
                     : value < 100 ? 1
                                   : 0,
                     prefixes[p], unit);
}

std::string duration(double seconds) {
  const int64_t s = static_cast<int64_t>(seconds + 0.5);
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{}:{:02} min", s / 60, s % 60);
  return fmt::format("{}:{:02} h", s / 3600, s / 60 % 60);
}

Progress::Progress(bool active, const std::string& log, bool append, int64_t steps)
    : active_(active),
      terminal_(launched_ranks() == 0 && isatty(STDOUT_FILENO)),
      steps_(steps),
      path_(log) {
  if (!active || log.empty()) return;
  log_ = std::fopen(log.c_str(), append ? "a" : "w");
  if (log_ == nullptr)
    fail(ErrorKind::io, "cannot write the log '{}'; choose another --log path", log);
}

Progress::~Progress() {
  if (bar_shown_) std::fputc('\n', stdout);
  if (log_) std::fclose(log_);
}

bool Progress::shows(int64_t step) const {
  const int64_t every = std::max<int64_t>(1, std::min<int64_t>(steps_ / 20, 50));
  return terminal_ || step <= 5 || step == steps_ || step % every == 0;
}

void Progress::record(const std::string& json) {
  if (log_ == nullptr) return;
  if (std::fprintf(log_, "%s\n", json.c_str()) < 0 || std::fflush(log_) != 0) {
    fail(ErrorKind::io, "cannot write the log '{}' (is the disk full?)", path_);
  }
}

void Progress::step(const StepRecord& r) {
  if (!active_) return;
  const size_t digits = fmt::formatted_size("{}", r.steps);
  std::string line = fmt::format(
      "step {:>{}}/{}  loss {:.4f}  grad {:.3f}  lr {:.2e}  {:.1f} ms  {}  {} ({:.0f} %)  {}  ETA "
      "{}",
      r.step, digits, r.steps, r.loss, r.grad_norm, r.lr, r.ms, with_unit(r.tokens_per_s, "tok/s"),
      with_unit(r.flops_per_s, "FLOP/s"), 100 * r.peak_share,
      with_unit(static_cast<double>(r.memory), "B"), duration(r.eta_s));
  if (terminal_) {
    const int width = 16, full = static_cast<int>(width * r.step / std::max<int64_t>(r.steps, 1));
    line = "[" + std::string(full, '=') + std::string(width - full, ' ') + "] " + line;
    std::fprintf(stdout, "\r\033[K%s", line.c_str());
    std::fflush(stdout);
    bar_shown_ = true;
  } else if (shows(r.step)) {
    std::fprintf(stdout, "%s\n", line.c_str());
    std::fflush(stdout);
  }
  record(nlohmann::json{{"step", r.step},
                        {"steps", r.steps},
                        {"loss", json_number(r.loss)},
                        {"grad_norm", json_number(r.grad_norm)},
                        {"lr", r.lr},
                        {"ms", r.ms},
                        {"tokens_per_s", r.tokens_per_s},
                        {"flops_per_s", r.flops_per_s},
                        {"peak_share", r.peak_share},
                        {"memory_bytes", r.memory},
                        {"eta_s", r.eta_s}}
             .dump());
}

void Progress::note(const std::string& text) {
  if (!active_) return;
  std::fprintf(stdout, "%s%s\n", bar_shown_ ? "\r\033[K" : "", text.c_str());
  std::fflush(stdout);
  bar_shown_ = false;
}

void Progress::evaluation(int64_t step, double loss, double accuracy) {
  nlohmann::json line = {{"step", step}, {"eval_loss", json_number(loss)}};
  std::string text = fmt::format("eval at step {}: loss {:.4f}", step, loss);
  if (accuracy >= 0) {
    line["eval_accuracy"] = accuracy;
    text += fmt::format(", accuracy {:.2f} %", 100 * accuracy);
  }
  note(text);
  if (active_) record(line.dump());
}

}  // namespace tessera::cli
