// Steps whose loss or gradient norm is far above that of the steps before, and what then happens.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "cli/commands.h"
#include "cli/saving.h"

namespace tessera::cli {

/// The loss and gradient norm of the last steps, from which limits for the next one follow:
///   median + max(4 * (q90 - q10), least * |median|),   least = 0.1 for the loss, 1 for the norm
/// with the quantiles of up to 128 steps; no limits before 32 steps. Pure arithmetic, the same in
/// every process.
class SpikeHistory {
 public:
  struct Limits {
    float loss, grad_norm;  ///< infinite if there is none
  };
  Limits limits() const;
  /// "the loss 9.1 is above 3.2 (...)"; "" for a step within its limits, or of values that are not
  /// finite.
  std::string spike(double loss, double grad_norm) const;
  /// Takes up a step. A spike counts as its limit, so that the limits follow a lasting change.
  void add(double loss, double grad_norm);

  /// All of it, for a checkpoint; parse() throws an io error that names `file`.
  std::string to_string() const;
  static SpikeHistory parse(const std::string& text, const std::string& file);

 private:
  std::deque<double> losses_, grad_norms_;
};

/// What is done about spikes (train.on_spike): a step whose loss or gradient norm is far above
/// those before is told, left out, or undone with all batches since the last checkpoint.
class SpikeGuard {
 public:
  explicit SpikeGuard(const Config& config) : on_spike_(config.text("train.on_spike")) {}
  /// Whether the update of a spike is left out.
  bool leaves_out() const { return on_spike_ == "skip"; }
  /// With train.on_spike = skip: outputs and guards of the function
  /// "train" by which it leaves out its update if loss or gradient norm is above a limit.
  void add_limits(Trainer& trainer, CompileOptions& compile) const;
  /// Feeds the limits of the next step.
  void feed_limits(Session& session) const;
  /// Whether the last run left out its update because of these limits.
  bool left_out(Session& session) const;
  /// After step `r`: finds out whether it was a spike, and takes it up into the history.
  void note(const StepRecord& r, Progress& progress);
  /// Why the last step was a spike; "": it was none.
  const std::string& last() const { return last_; }
  /// Whether the last step is to be undone.
  bool wants_rollback() const { return !last_.empty() && on_spike_ == "rollback"; }
  /// Goes back to the newest checkpoint of --save-every because step `step` was a spike, and
  /// returns its step; `step` if there is none yet. Throws a usage error after several rollbacks to
  /// one checkpoint. Collective.
  int64_t roll_back(int64_t step, const SavingFlags& flags, Session& session, Saver& saver,
                    Progress& progress);
  /// Step s reads batch s + data_shift(): batches that were rolled back are left out.
  int64_t data_shift() const { return data_shift_; }
  const SpikeHistory& history() const { return history_; }
  /// Goes on from what a checkpoint holds.
  void restore(int64_t data_shift, SpikeHistory history);

 private:
  std::string on_spike_;
  SpikeHistory history_;
  std::string last_;
  int64_t data_shift_ = 0;
  int64_t rolled_back_to_ = -1;  ///< the step of the last rollback
  int rollbacks_ = 0;            ///< to that step, in a row
};

}  // namespace tessera::cli
