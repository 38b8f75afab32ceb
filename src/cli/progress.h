// The progress of a training job: a live bar on a terminal, plain lines elsewhere, JSON lines in a
// file.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "cli/tensorboard.h"

namespace tessera::cli {

/// The fields of one step; docs/reference/log-fields.md documents the JSON names, which are these.
struct StepRecord {
  int64_t step = 0, steps = 0;  ///< steps done, steps in all
  double loss = 0, grad_norm = 0, lr = 0;
  double ms = 0;          ///< of this step
  double planned_ms = 0;  ///< for the machine; 0: no profile of it is known
  double tokens_per_s = 0, flops_per_s = 0;
  double peak_share = 0;  ///< of the matmul rate measured at start
  int64_t memory = 0;     ///< bytes of arenas on one rank
  double eta_s = 0;
  int64_t skipped = 0;    ///< steps with gradients that were not finite, so far
  double loss_scale = 0;  ///< of the next step; 0: there is none
  int slowest_rank = 0;   ///< by its own work in this step
  double slowest_ms = 0;  ///< of that rank
  double median_ms = 0;   ///< of all ranks
};

/// Paths, or "".
struct ProgressFiles {
  std::string log;          ///< JSON lines
  std::string csv;          ///< a table with a row a step
  std::string tensorboard;  ///< a folder of event files
};

class Progress {
 public:
  /// `active`: this process prints (the root). `append`: to files that exist. `steps`: in all.
  /// Throws an io error.
  Progress(bool active, const ProgressFiles& files, bool append, int64_t steps);
  ~Progress();
  Progress(const Progress&) = delete;
  void step(const StepRecord& record);
  /// Whether a step gets a line, and whether there is a log: the same in every process.
  bool shows(int64_t step) const;
  bool has_log() const { return !files_.log.empty(); }
  /// A line of the log.
  void record(const std::string& json);
  /// Lines between steps.
  void note(const std::string& text);
  /// accuracy < 0: none.
  void evaluation(int64_t step, double loss, double accuracy);

 private:
  bool active_, terminal_, bar_shown_ = false;
  int64_t steps_;
  std::FILE *log_ = nullptr, *csv_ = nullptr;
  ProgressFiles files_;
  std::unique_ptr<EventFile> events_;
};

/// "12.3 GFLOP/s", "1.2 MB"
std::string with_unit(double value, const char* unit);
std::string duration(double seconds);

}  // namespace tessera::cli
