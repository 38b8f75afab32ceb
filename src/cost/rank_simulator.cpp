#include "cost/rank_simulator.h"

#include <algorithm>
#include <cmath>

#include "cost/stage_ops.h"
#include "program/loop_runs.h"

namespace tessera {

namespace {

constexpr int64_t kSimulated = 8;  ///< iterations of a loop until the time per iteration is steady

}  // namespace

void add_times(FunctionTime& to, const FunctionTime& from, double times) {
  to.seconds += times * from.seconds;
  to.compute += times * from.compute;
  to.slowed += times * from.slowed;
  to.exposed += times * from.exposed;
  to.bubble += times * from.bubble;
  to.bubble_compute += times * from.bubble_compute;
  for (const AxisTime& axes : from.by_axes) {
    auto it = std::find_if(to.by_axes.begin(), to.by_axes.end(),
                           [&](const AxisTime& a) { return a.axes == axes.axes; });
    if (it == to.by_axes.end()) it = to.by_axes.insert(it, {axes.axes, 0, 0, 0});
    it->bytes += std::llround(times * static_cast<double>(axes.bytes));
    it->seconds += times * axes.seconds;
    it->exposed += times * axes.exposed;
  }
}

RankSimulator::RankSimulator(const Costs& costs, bool shorten, std::vector<int> coordinates)
    : costs_(costs),
      shorten_(shorten),
      coordinates_(std::move(coordinates)),
      lanes_(costs.machine().overlap) {}

FunctionTime RankSimulator::finish(bool with_spans) {
  const FunctionTime sum = totals();
  for (size_t c = 0; c < transfers_.size(); ++c) {
    if (transfers_[c] != kOfStages) time_.collectives[c].exposed = lanes_.exposed(transfers_[c]);
  }
  add_times(time_, sum, 1);
  if (with_spans) {
    for (const StreamSimulator::Span& span : lanes_.spans()) {
      const bool computes = span.lane == 0;
      const int step = computes ? span.id : time_.collectives[static_cast<size_t>(span.id)].step;
      time_.spans.push_back({step, span.lane, span.begin, span.seconds, computes ? -1 : span.id});
    }
    time_.spans.insert(time_.spans.end(), of_stages_.begin(), of_stages_.end());
  } else {
    time_.ticks.clear();
  }
  return std::move(time_);
}

/// The lane of a set of axes, from 0.
size_t RankSimulator::lane_of(const std::vector<int>& axes) {
  const auto at = std::find_if(time_.by_axes.begin(), time_.by_axes.end(),
                               [&](const AxisTime& a) { return a.axes == axes; });
  const auto lane = static_cast<size_t>(at - time_.by_axes.begin());
  if (at == time_.by_axes.end()) time_.by_axes.push_back({axes, 0, 0, 0});
  return lane;
}

double RankSimulator::seconds_of(const Step& step) {
  const auto [it, is_new] = seconds_.try_emplace(&step, 0.0);
  if (is_new) it->second = costs_.compute(step);
  return it->second;
}

void RankSimulator::simulate(std::span<const Step> steps, int number) {
  for (size_t s = 0; s < steps.size(); ++s) {
    const Step& step = steps[s];
    const int mine = number;
    number += 1 + steps_inside(step);
    if (step.kind == StepKind::wait) {
      std::deque<int>& started = under_way_[{step.number, odd_}];
      if (started.empty()) continue;
      lanes_.wait(started.front());
      started.pop_front();
    } else if (!step.body.empty()) {
      simulate_loop(step, mine + 1);
    } else if (step.kind == StepKind::compute) {
      lanes_.compute(seconds_of(step), mine);
    } else {
      size_t end = s + 1;
      while (end < steps.size() && steps[end].kind == StepKind::collective &&
             steps[end].number == step.number)
        ++end;
      start(mine, steps.subspan(s, end - s));
      number += static_cast<int>(end - s) - 1;
      s = end - 1;
    }
  }
}

void RankSimulator::simulate_loop(const Step& loop, int number) {
  const int axis = loop.loop.stage_axis;
  axis < 0 ? simulate_iterations(loop, number) : simulate_ticks(loop, number, axis);
}

/// Simulates a pipeline's loop over ticks.
void RankSimulator::simulate_ticks(const Step& loop, int number, int axis) {
  StageOps ops(costs_, shorten_, loop, axis);
  StageSimulator stages(
      costs_, loop, number,
      axis, [&](std::span<const Step> steps, int first, int stage) -> const auto& {
        return ops.of(steps, first, stage).ops;
      });
  const StagesTime simulated = stages.simulate();
  const double begin = lanes_.now(),
               share = 1.0 / costs_.mesh().axes()[static_cast<size_t>(axis)].size;
  add_transfers(simulated, begin);
  for (const StageRun& run : simulated.runs) add_run(run, ops, number - 1, begin, share);
  for (const auto& priced : ops.all()) {
    FunctionTime time = priced->time;
    time.seconds = 0;
    add_times(moved_, time, share * static_cast<double>(priced->runs));
  }
  moved_.slowed += simulated.slowed;
  moved_.bubble += simulated.seconds - simulated.work - simulated.slowed - simulated.exposed;
  moved_.bubble_compute += simulated.only_compute - simulated.compute;
  lanes_.pass(simulated.seconds);
}

/// Adds a run of a stage: rows for its own transfers, and of the first stage the spans.
void RankSimulator::add_run(const StageRun& run, StageOps& ops, int loop, double begin,
                            double share) {
  PricedOps& priced = ops.of(run.steps, run.step, run.stage);
  ++priced.runs;
  if (shorten_) return;
  const auto first_row = static_cast<int>(time_.collectives.size());
  for (CollectiveTime row : priced.time.collectives) {
    row.share = share;
    time_.collectives.push_back(std::move(row));
    transfers_.push_back(kOfStages);
  }
  for (size_t op = 0; op < priced.ops.size(); ++op) {
    const double end = op + 1 < run.begins.size() ? run.begins[op + 1] : run.end;
    if (run.steps[0].loop.share && priced.ops[op].seconds > 0)
      time_.ticks.push_back(
          {run.step, loop, run.stage, run.tick, begin + run.begins[op], end - run.begins[op]});
  }
  if (run.stage != 0) return;
  size_t op = 0;
  for (size_t s = 0; s < priced.time.spans.size(); ++s) {
    TimeSpan span = priced.time.spans[s];
    while (op + 1 < priced.spans_before.size() && priced.spans_before[op + 1] <= s) ++op;
    span.begin += begin + run.begins[op] - priced.begins[op];
    if (span.collective >= 0) {
      span.collective += first_row;
      const auto& axes = time_.collectives[static_cast<size_t>(span.collective)].axes;
      span.lane = static_cast<int>(lane_of(axes)) + 1;
    }
    of_stages_.push_back(span);
  }
}

/// Adds what passed between stages.
void RankSimulator::add_transfers(const StagesTime& simulated, double begin) {
  for (const StageTransfer& transfer : simulated.transfers) {
    const Step& first = transfer.bucket[0];
    CollectiveTime row{transfer.step,    static_cast<int>(transfer.bucket.size()),
                       first.axes,       0,
                       transfer.seconds, transfer.exposed};
    for (const Step& member : transfer.bucket) row.bytes += member.bytes;
    const int lane = static_cast<int>(lane_of(row.axes)) + 1;
    FunctionTime time;
    time.exposed = row.exposed;
    time.by_axes.push_back({row.axes, row.bytes, row.seconds, row.exposed});
    add_times(moved_, time, 1);
    if (shorten_) continue;
    if (transfer.end > transfer.begin)
      of_stages_.push_back({row.step, lane, begin + transfer.begin, transfer.end - transfer.begin,
                            static_cast<int>(time_.collectives.size())});
    time_.collectives.push_back(std::move(row));
    transfers_.push_back(kOfStages);
  }
}

int64_t RankSimulator::iterations_here(const Step& loop) const {
  return iterations_on(loop.loop, coordinates_);
}

/// Simulates a loop in the order of the executor: some buckets start an iteration early, some are
/// awaited an iteration late.
void RankSimulator::simulate_iterations(const Step& loop, int number) {
  const Function& body = loop.body[0];
  const std::span<const Step> steps(body.steps);
  const size_t stores = static_cast<size_t>(body.first_update);
  const size_t early = static_cast<size_t>(body.early);
  const size_t late = stores - static_cast<size_t>(body.late);
  const bool outside = odd_;
  auto run = [&](int64_t iteration, size_t first, size_t last) {
    int skipped = 0;
    for (const Step& step : steps.first(first)) skipped += 1 + steps_inside(step);
    odd_ = iteration % 2 != 0;
    simulate(steps.subspan(first, last - first), number + skipped);
  };
  const int64_t count = iterations_here(loop);
  if (count == 0) return;
  run(0, 0, early);
  FunctionTime before;
  for (int64_t iteration = 0; iteration < count; ++iteration) {
    if (shorten_ && iteration == kSimulated - 2) before = totals();
    if (shorten_ && iteration == kSimulated)
      iteration += skip_iterations(before, count - 1 - iteration);
    if (iteration + 1 < count) run(iteration + 1, 0, early);
    run(iteration, early, late);
    if (iteration > 0) run(iteration - 1, late, stores);
    run(iteration, stores, steps.size());
  }
  run(count - 1, late, stores);
  odd_ = outside;
}

/// The totals so far.
FunctionTime RankSimulator::totals() const {
  FunctionTime sum;
  sum.seconds = lanes_.now();
  sum.compute = lanes_.computed();
  sum.slowed = lanes_.slowed();
  sum.by_axes = time_.by_axes;
  for (size_t c = 0; c < transfers_.size(); ++c) {
    if (transfers_[c] == kOfStages) continue;
    const CollectiveTime& row = time_.collectives[c];
    AxisTime& axes = *std::find_if(sum.by_axes.begin(), sum.by_axes.end(),
                                   [&](const AxisTime& a) { return a.axes == row.axes; });
    const double exposed = lanes_.exposed(transfers_[c]);
    axes.bytes += row.bytes;
    axes.seconds += row.seconds;
    axes.exposed += exposed;
    sum.exposed += exposed;
  }
  add_times(sum, moved_, 1);
  add_times(sum, skipped_, 1);
  return sum;
}

/// Extrapolates up to `most` iterations, an even number of them, from the last two, which ran since
/// `before`. Returns how many.
int64_t RankSimulator::skip_iterations(const FunctionTime& before, int64_t most) {
  const int64_t iterations = most / 2 * 2;
  FunctionTime two = totals();
  add_times(two, before, -1);
  add_times(skipped_, two, static_cast<double>(iterations / 2));
  return iterations;
}

void RankSimulator::start(int first, std::span<const Step> members) {
  CollectiveTime row{first, static_cast<int>(members.size()), members[0].axes,
                     0,     costs_.bucket(members),           0};
  for (const Step& member : members) row.bytes += member.bytes;
  const int lane = static_cast<int>(lane_of(row.axes)) + 1;
  const auto number = static_cast<int>(time_.collectives.size());
  transfers_.push_back(lanes_.start(row.seconds, lane, number));
  under_way_[{members[0].number, odd_}].push_back(transfers_.back());
  time_.collectives.push_back(std::move(row));
}

}  // namespace tessera
