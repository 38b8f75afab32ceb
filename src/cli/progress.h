// The progress of a training job: a live bar on a terminal, else plain lines; JSON lines in a file.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/log_file.h"
#include "cli/report.h"
#include "cli/tensorboard.h"

namespace tessera::cli {

using NamedNumbers = std::vector<std::pair<std::string, double>>;

/// The fields of one step. The JSON names are the same; see docs/reference/log-fields.md.
struct StepRecord {
  int64_t step = 0, steps = 0;  ///< steps done, total steps
  double loss = 0, grad_norm = 0, lr = 0;
  double ms = 0;          ///< measured time of this step
  double data_ms = 0;     ///< of it, until the data of its batch were there
  double planned_ms = 0;  ///< predicted time; 0: no machine profile
  double tokens_per_s = 0, flops_per_s = 0;
  double peak_share = 0;  ///< fraction of the matmul rate measured at start
  int64_t memory = 0;     ///< bytes of arenas per rank
  double eta_s = 0;
  int64_t skipped = 0;        ///< number of steps so far with non-finite gradients
  double loss_scale = 0;      ///< for the next step; 0: no loss scaling
  int slowest_rank = 0;       ///< the rank with the most own work in this step
  double slowest_ms = 0;      ///< its own work
  double median_ms = 0;       ///< of all ranks
  NamedNumbers metrics = {};  ///< those of the model
};

/// Paths, or "" for none.
struct ProgressFiles {
  std::string log;          ///< JSON lines
  std::string csv;          ///< a table with one row per step
  std::string tensorboard;  ///< folder of event files
};

class Progress {
 public:
  /// `active`: this process prints (the root). `quiet`: what is no trouble goes to the files only.
  /// `append`: append to existing files. `steps`: total number. `metrics`: names of the model's.
  /// Throws an io error, and a usage error for a metric that is named like a field of the log or
  /// table.
  Progress(bool active, bool quiet, const ProgressFiles& files, bool append, int64_t steps,
           const std::vector<std::string>& metrics = {});
  ~Progress();
  Progress(const Progress&) = delete;
  void step(const StepRecord& record);
  /// shows: true if this step is printed. Both give the same result in every process.
  bool shows(int64_t step) const;
  bool has_log() const { return !files_.log.empty(); }
  /// Adds a line to the log.
  void record(const nlohmann::json& line);
  /// Prints lines between steps: trouble, and what was asked for.
  void note(const std::string& text);
  /// The same for what is no trouble; nothing if quiet.
  void inform(const std::string& text);
  /// accuracy < 0: not available.
  void evaluation(int64_t step, double loss, double accuracy, const NamedNumbers& metrics);
  /// Texts that the model wrote, each with its prompt.
  void samples(int64_t step, const std::vector<std::pair<std::string, std::string>>& texts);

 private:
  bool active_, quiet_, terminal_, coloured_, bar_shown_ = false;
  int64_t steps_;
  ProgressFiles files_;
  std::unique_ptr<LogFile> log_, csv_;
  std::unique_ptr<EventFile> events_;
};

}  // namespace tessera::cli
