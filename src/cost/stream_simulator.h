// One lane that computes and lanes that transfer, as a fluid: while both kinds have work, a moment
// dt does dt / Overlap::compute of the computation and dt / Overlap::transfer of the transfers.
#pragma once

#include <deque>
#include <vector>

#include "tessera/machine.h"

namespace tessera {

class StreamSimulator {
 public:
  explicit StreamSimulator(const Overlap& overlap) : overlap_(overlap) {}

  /// What the lanes did when; lane 0 computes.
  struct Span {
    int id = 0, lane = 0;
    double begin = 0, seconds = 0;
  };

  /// Computes `seconds` of undisturbed work; `id` is for spans.
  void compute(double seconds, int id = -1);
  /// Puts a transfer into lane 1, 2, ... behind what is there; the number is what wait() takes.
  int start(double seconds, int lane, int id = -1);
  /// Holds the computation until that transfer is complete.
  void wait(int transfer);
  /// Holds it until all are.
  void wait_all();

  double now() const { return now_; }
  double computed() const { return computed_; }
  /// What computing took longer because of transfers.
  double slowed() const { return slowed_; }
  /// What the computation waited while the transfer was at the head of its lane.
  double exposed(int transfer) const { return exposed_.at(transfer); }
  /// In order of end.
  const std::vector<Span>& spans() const { return spans_; }

 private:
  struct Transfer {
    int number, id;
    double left, begin;
  };
  bool is_busy() const;
  double next_end(double rate) const;
  void hold(size_t lane);
  void hold_at_least(int transfer);
  void advance(double dt, double rate);
  void begin_heads();
  void end_heads();

  Overlap overlap_;
  double now_ = 0, computed_ = 0, slowed_ = 0;
  std::vector<std::deque<Transfer>> queues_;
  std::vector<double> exposed_, seconds_;  ///< by transfer
  std::vector<Span> spans_;
};

}  // namespace tessera
