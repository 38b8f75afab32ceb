// The steps of a training run, with all that is done between them.
#pragma once

#include "cli/forecast.h"
#include "cli/replica_check.h"
#include "cli/run_summary.h"
#include "cli/signals.h"
#include "cli/stragglers.h"
#include "cli/training.h"

namespace tessera::cli {

class TrainingLoop {
 public:
  /// What the loop uses, but does not own. All of it must live as long as the loop.
  struct Parts {
    Run& run;
    RunData& data;
    RunState& state;
    Watch& watch;
    Progress& progress;
    Saver& saver;
    ReplicaCheck& replicas;
    Watchdog& watchdog;
    const StopSignals& signals;
  };
  /// `forecast`: of the root, if a machine profile is known. `startup`: seconds of each phase so
  /// far. `peak`: FLOP/s.
  TrainingLoop(const Parts& parts, Forecast forecast, nlohmann::json startup, double peak);

  /// Runs all steps and fills the report of --json. Returns the exit code. Collective.
  int run(nlohmann::json& report);
  /// FLOP/s, raised by a step that was faster.
  double peak() const { return peak_; }
  /// What the job did, where its results are, and a command that goes on with them. Root only.
  std::string summary(int code) const;

 private:
  /// What the ranks tell each other after a step.
  struct News {
    int signal = 0;            ///< one that some rank received, or 0
    bool about_saves = false;  ///< Saver::has_news()
  };
  StepRecord step(int64_t step);
  void run_function();
  std::string why_skipped(StepRecord& r) const;
  void count_skip(StepRecord& r);
  void raise_peak(StepRecord& r);
  News share_news(StepRecord& r);
  void note_fallbacks();
  void report_start(double first_step);
  bool ends_early(int64_t step) const;
  void evaluate(int64_t step, nlohmann::json& report);
  int save_and_stop(int64_t step, int signal);
  /// After a step that stays: what follows from it. Returns the exit code if the run ends here.
  std::optional<int> after_step(StepRecord& r, const News& news, nlohmann::json& report);

  Run& run_;
  RunData& data_;
  RunState& state_;
  Watch& watch_;
  Progress& progress_;
  Saver& saver_;
  Watchdog& watchdog_;
  const StopSignals& signals_;
  const int64_t steps_;
  ReplicaCheck& replicas_;
  Stragglers stragglers_;
  Forecast forecast_;
  RunSummary summary_;
  nlohmann::json startup_;
  double peak_, mean_ms_ = 0;
  bool told_peak_ = false;
  int64_t skipped_in_a_row_ = 0;
  int64_t saved_;                  ///< the step of the last save
  std::vector<std::string> told_;  ///< fallbacks of the device that were printed
};

}  // namespace tessera::cli
