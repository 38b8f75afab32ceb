// What a training job says at its end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/best.h"
#include "cli/progress.h"

namespace tessera::cli {

/// Counts the steps of a job as they are done.
class RunSummary {
 public:
  void add(const StepRecord& record);

  struct Places {
    std::string checkpoint, log;  ///< as given; empty: none
    std::string next;             ///< a command; empty: none
  };
  /// Lines "done", "saved", "log" and "next": steps, time, medians of tokens/s and of the share of
  /// the peak, the last loss and the best of evaluations, where the results are and the command
  /// that goes on. Empty if no step was done.
  std::string text(const BestEvaluation& best, const Places& places) const;

 private:
  StepRecord last_;
  double seconds_ = 0;
  std::vector<double> rates_, shares_;  ///< of each step: tokens/s, share of the peak
};

/// `text` as one word of a POSIX shell.
std::string shell_word(const std::string& text);

}  // namespace tessera::cli
