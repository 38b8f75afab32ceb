// What is reported of published training runs: predicted beside measured.
#pragma once

#include <string>
#include <vector>

#include "tessera/machine.h"

namespace tessera::runs {

struct RunReport {
  std::string system, model, source, gpu;
  int line = 0;  ///< in the file
  int64_t gpus = 0, micro_batch = 0;
  bool calibrates = false;           ///< constants were fitted on this row
  double measured = 0;               ///< seconds of a step; 0: not printed
  double predicted = 0, null = 0;    ///< by this library; by one rate for each kind of GPU
  double error = 0, null_error = 0;  ///< |predicted / measured - 1|
  double compute = 0, tensor = 0, data = 0, bubble = 0, update = 0;  ///< parts of `predicted`
  double memory = 0;  ///< bytes predicted on a device
  bool fits = true, ran_out = false;
  std::string failure;  ///< why there is no prediction, with file and line; "" if there is one
};

struct SourceReport {
  std::string source;
  int rows = 0;
  double error = 0, null_error = 0;  ///< means
  double tau = 0;  ///< Kendall's rank correlation of predicted and measured, ties left out
};

struct RunsReport {
  std::vector<RunReport> rows;
  std::vector<SourceReport> by_source;
  double error = 0, null_error = 0, tau = 0;   ///< over all rows with a measured time
  double test_error = 0, test_null_error = 0;  ///< over those that nothing was fitted on
  int timed = 0, test_rows = 0, failed = 0;
  /// Of the rows said to run out of memory, and of those predicted to.
  int ran_out = 0, predicted_out = 0, both_out = 0;
};

/// Predicts every row of a CSV file with the columns of docs/how-to/simulating.md. `machine`: for
/// all rows; null: each row's own, by gpu_kind. A row that cannot be predicted says why; throws io
/// errors, and usage errors where the file as a whole is none.
RunsReport simulate_runs(const std::string& path, const Machine* machine = nullptr);

}  // namespace tessera::runs
