// Simulates one compute lane and several communication lanes. While both kinds have work, each runs
// at a reduced rate: in dt seconds, dt / Overlap::compute of compute work and dt /
// Overlap::transfer of transfers are done.
#pragma once

#include <deque>
#include <vector>

#include "tessera/machine.h"

namespace tessera {

class StreamSimulator {
 public:
  explicit StreamSimulator(const Overlap& overlap) : overlap_(overlap) {}

  /// An interval in which a lane was busy; lane 0 computes.
  struct Span {
    int id = 0, lane = 0;
    double begin = 0, seconds = 0;
  };

  /// Runs compute work that takes `seconds` without slowdown; `id` is for spans.
  void compute(double seconds, int id = -1);
  /// The compute lane does something else, or waits, for so long.
  void pass(double seconds) { advance(seconds, 1); }
  /// Appends a transfer to lane 1, 2, ...; returns its number for wait().
  int start(double seconds, int lane, int id = -1);
  /// Blocks the compute lane until that transfer is complete.
  void wait(int transfer);
  /// Blocks it until all transfers are complete.
  void wait_all();

  double now() const { return now_; }
  double computed() const { return computed_; }
  /// Extra compute time because of concurrent transfers.
  double slowed() const { return slowed_; }
  /// How long the compute lane was blocked while this transfer was at the head of its lane.
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
