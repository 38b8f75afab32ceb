// Steps whose loss or gradient norm is far above that of the steps before, and what then happens.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "tessera/session.h"

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

/// What is done about spikes (train.on_spike), and its state.
struct Spikes {
  SpikeHistory history = {};
  std::string last = {};   ///< why the last step was a spike; "": it was none
  int64_t data_shift = 0;  ///< step s reads batch s + data_shift: rolled-back ones are left out
  int64_t rolled_back_to = -1;  ///< the step of the last rollback
  int rollbacks = 0;            ///< to that step, in a row
};

}  // namespace tessera::cli
