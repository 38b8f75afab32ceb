// The report on published training runs: predicted beside measured.
#pragma once

#include <string>
#include <vector>

#include "tessera/machine.h"

namespace tessera::runs {

struct RunReport {
  std::string system, model, source, gpu;
  int line = 0;  ///< line of the file
  int64_t gpus = 0, micro_batch = 0;
  bool calibrates = false;           ///< constants were fitted on this row
  double measured = 0;               ///< seconds per step; 0: not published
  double predicted = 0, null = 0;    ///< by this library; by one rate per kind of GPU
  double error = 0, null_error = 0;  ///< |predicted / measured - 1|
  double compute = 0, tensor = 0, data = 0, bubble = 0, update = 0;  ///< parts of `predicted`
  double memory = 0;                                                 ///< predicted bytes per device
  bool fits = true, ran_out = false;
  std::string failure;  ///< why there is no prediction, with file and line; or ""
};

struct SourceReport {
  std::string source;  ///< or the system, or the framework: the first word of a system
  int rows = 0;
  double error = 0, null_error = 0;  ///< means
  double tau = 0;  ///< Kendall's rank correlation of predicted and measured, without ties
};

struct RunsReport {
  std::vector<RunReport> rows;
  std::vector<SourceReport> by_source, by_system, by_framework;
  double error = 0, null_error = 0, tau = 0;   ///< over all rows with a measured time
  double test_error = 0, test_null_error = 0;  ///< over the rows that nothing was fitted on
  int timed = 0, test_rows = 0, failed = 0;
  /// Number of rows published as out of memory, predicted as such, and both.
  int ran_out = 0, predicted_out = 0, both_out = 0;
};

/// Predicts every row of a CSV file with the columns of docs/how-to/simulating.md. `machine`: for
/// all rows; null: each row's own, by gpu_kind. `leave_out`: no row is predicted with what was
/// fitted on a row of its system (Run::left_out). A row that cannot be predicted has a `failure`.
/// Throws io errors, and usage errors if the file is not such a CSV.
RunsReport simulate_runs(const std::string& path, const Machine* machine = nullptr,
                         bool leave_out = false);

}  // namespace tessera::runs
