// Simulates the steps of a function on one rank, and the ticks of a pipeline on its stages.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cost/function_time.h"
#include "cost/stage_simulator.h"
#include "cost/stream_simulator.h"

namespace tessera {

class StageOps;

class RankSimulator {
 public:
  /// `shorten`: of most loops only some iterations are simulated, the rest extrapolated.
  /// `coordinates`: of the rank. Without them loops run the most iterations that any rank has.
  RankSimulator(const Costs& costs, bool shorten, std::vector<int> coordinates = {});

  /// `number`: the first step's, in all_steps().
  void simulate(std::span<const Step> steps, int number);
  /// `number`: of the first step of the body.
  void simulate_iterations(const Step& loop, int number);
  /// Ends all transfers.
  void wait_all() { lanes_.wait_all(); }

  double now() const { return lanes_.now(); }
  double computed() const { return lanes_.computed() + moved_.compute + skipped_.compute; }
  double seconds() const { return lanes_.now() + skipped_.seconds; }
  size_t spans() const { return lanes_.spans().size(); }
  FunctionTime finish(bool with_spans);

 private:
  /// A transfer of the lanes that a row of FunctionTime::collectives is for. -1: its times were
  /// added with those of its stage.
  static constexpr int kOfStages = -1;

  void simulate_loop(const Step& loop, int number);
  void simulate_ticks(const Step& loop, int number, int axis);
  void add_run(const StageRun& run, StageOps& ops, int loop, double begin, double share);
  void add_transfers(const StagesTime& simulated, double begin);
  int64_t iterations_here(const Step& loop) const;
  FunctionTime totals() const;
  int64_t skip_iterations(const FunctionTime& before, int64_t most);
  size_t lane_of(const std::vector<int>& axes);
  double seconds_of(const Step& step);
  void start(int first, std::span<const Step> members);

  const Costs& costs_;
  const bool shorten_;
  const std::vector<int> coordinates_;
  StreamSimulator lanes_;
  FunctionTime skipped_;  ///< of extrapolated iterations
  FunctionTime moved_;    ///< of stages, without the seconds, which the lanes have
  std::map<std::pair<int, bool>, std::deque<int>>
      under_way_;  ///< (bucket number, iteration is odd) -> transfers, in order
  bool odd_ = false;
  std::unordered_map<const Step*, double> seconds_;
  std::vector<int> transfers_;  ///< of the lanes, by row of FunctionTime::collectives
  std::vector<TimeSpan> of_stages_;
  FunctionTime time_;
};

/// Adds times and figures of axes.
void add_times(FunctionTime& to, const FunctionTime& from, double times);

}  // namespace tessera
