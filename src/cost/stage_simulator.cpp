// All stages run the steps of a tick in the same order, and what one waits for was started by
// another in an earlier step. So it is enough to go through the Program once, step by step, with a
// clock for each stage. The clock of a stage that sends may be ahead of that of another one which
// sends later in the Program to the same stage: what the second one sends takes the first gap.
#include "cost/stage_simulator.h"

#include <algorithm>
#include <utility>

#include "cost/function_time.h"

namespace tessera {

namespace {

/// One more than the highest scalar that the function reads or sets.
size_t scalars_of(const Function& function) {
  int most = 0;
  for (const Step& step : function.steps) {
    most = std::max(most, step.loop.counter);
    for (const AffineExpr& expr : step.exprs) most = std::max(most, expr.scalar);
    for (const Function& body : step.body)
      most = std::max(most, static_cast<int>(scalars_of(body)) - 1);
  }
  return static_cast<size_t>(most) + 1;
}

bool is_share(const Step& step) { return step.loop.share.has_value(); }

/// The first time from `begin` on at which something is free for so many seconds.
double first_free(const std::map<double, double>& taken, double begin, double seconds) {
  auto next = taken.upper_bound(begin);
  if (next != taken.begin()) begin = std::max(begin, std::prev(next)->second);
  for (; next != taken.end() && next->first < begin + seconds; ++next)
    begin = std::max(begin, next->second);
  return begin;
}

}  // namespace

StageSimulator::StageSimulator(const Costs& costs, const Step& loop, int number, int axis,
                               OpsOf ops_of)
    : costs_(costs),
      overlap_(costs.machine().overlap),
      loop_(loop),
      number_(number),
      axis_(axis),
      ops_of_(std::move(ops_of)),
      messages_(costs.mesh(), axis),
      clocks_(static_cast<size_t>(costs.mesh().axes()[static_cast<size_t>(axis)].size)),
      scalars_(std::max(scalars_of(loop.body[0]), static_cast<size_t>(loop.loop.counter) + 1)) {}

StagesTime StageSimulator::simulate() {
  for (int64_t tick = 0; tick < loop_.loop.iterations; ++tick) simulate_tick(tick);
  double free = 0, exposed = 0;
  for (const Clock& clock : clocks_) {
    time_.seconds = std::max(time_.seconds, clock.now);
    time_.only_compute = std::max(time_.only_compute, clock.only_compute);
    free = std::max(free, clock.free);
  }
  const auto stages = static_cast<double>(clocks_.size());
  for (double* sum : {&time_.compute, &time_.work, &time_.slowed}) *sum /= stages;
  for (const StageTransfer& transfer : time_.transfers) exposed += transfer.exposed;
  time_.exposed = exposed > 0 ? std::max(0.0, time_.seconds - free - time_.slowed) : 0;
  for (StageTransfer& transfer : time_.transfers)
    transfer.exposed = exposed > 0 ? transfer.exposed / exposed * time_.exposed : 0;
  return std::move(time_);
}

void StageSimulator::simulate_tick(int64_t tick) {
  scalars_[static_cast<size_t>(loop_.loop.counter)] = tick;
  const std::span<const Step> steps(loop_.body[0].steps);
  int number = number_;
  for (size_t s = 0; s < steps.size();) {
    size_t end = s + 1;
    while (!is_share(steps[s]) && end < steps.size() && !is_share(steps[end])) ++end;
    simulate_together(steps.subspan(s, end - s), number, tick);
    for (; s < end; ++s) number += 1 + steps_inside(steps[s]);
  }
}

/// True if a stage runs the share in this tick. Sets its counter.
bool StageSimulator::runs(const Step& share, int stage) {
  const auto [begin, end] = counters_of(share.loop, messages_.coordinates(stage), scalars_.data());
  if (begin == end) return false;
  scalars_[static_cast<size_t>(share.loop.counter)] = share.loop.reverse ? end - 1 : begin;
  return true;
}

void StageSimulator::simulate_together(std::span<const Step> steps, int number, int64_t tick) {
  std::vector<int> stages;
  std::vector<const std::vector<StageOp>*> ops;
  for (int stage = 0; stage < static_cast<int>(clocks_.size()); ++stage) {
    if (is_share(steps[0]) && !runs(steps[0], stage)) continue;
    stages.push_back(stage);
    ops.push_back(&ops_of_(steps, number, stage));
  }
  if (stages.empty()) return;
  const size_t first_run = time_.runs.size();
  for (const int stage : stages) time_.runs.push_back({steps, number, stage, tick});
  for (size_t k = 0; k < ops[0]->size(); ++k) {
    for (size_t i = 0; i < stages.size(); ++i)
      time_.runs[first_run + i].begins.push_back(clocks_[static_cast<size_t>(stages[i])].now);
    const StageOp& op = (*ops[0])[k];
    switch (op.kind) {
      case StageOp::Kind::work:
        for (size_t i = 0; i < stages.size(); ++i)
          work(clocks_[static_cast<size_t>(stages[i])], (*ops[i])[k]);
        break;
      case StageOp::Kind::start:
        start(op, stages);
        break;
      case StageOp::Kind::wait:
        wait(op, stages);
        break;
      case StageOp::Kind::meet:
        meet(stages);
        break;
    }
  }
  for (size_t i = 0; i < stages.size(); ++i)
    time_.runs[first_run + i].end = clocks_[static_cast<size_t>(stages[i])].now;
}

void StageSimulator::work(Clock& clock, const StageOp& op) {
  double slowed = 0;
  if (overlap_.possible) {
    const double both = std::max(0.0, clock.busy_until - clock.now);
    slowed = std::min(op.compute * (overlap_.compute - 1), both * (1 - 1 / overlap_.compute));
  }
  clock.work_begin = clock.now;
  clock.now += op.seconds + slowed;
  clock.work_end = clock.now;
  clock.free += op.seconds;
  clock.only_compute += op.compute;
  time_.compute += op.compute;
  time_.work += op.seconds;
  time_.slowed += slowed;
}

double StageSimulator::seconds_of(const StageOp& op) {
  const auto [at, is_new] = seconds_.try_emplace(op.bucket.data(), 0.0);
  if (is_new) at->second = costs_.bucket(op.bucket);
  return at->second;
}

void StageSimulator::start(const StageOp& op, const std::vector<int>& stages) {
  UnderWay bucket{time_.transfers.size(), std::vector<Arrival>(clocks_.size())};
  time_.transfers.push_back({op.step, op.bucket, seconds_of(op)});
  if (std::all_of(op.bucket.begin(), op.bucket.end(),
                  [&](const Step& step) { return messages_.are_sent_in(step); })) {
    const double alone = costs_.start(op.bucket[0]);
    for (const StageMessage& message : messages_.of(op.bucket, scalars_.data()))
      send(message, alone, bucket);
  } else {
    Arrival end;
    for (const int stage : stages) {
      const Clock& clock = clocks_[static_cast<size_t>(stage)];
      end.now = std::max(end.now, clock.now);
      end.free = std::max(end.free, clock.free);
      end.only_compute = std::max(end.only_compute, clock.only_compute);
    }
    StageTransfer& transfer = time_.transfers.back();
    if (overlap_.possible) {
      transfer.begin = std::max(end.now, together_);
      together_ = end.now = transfer.end = transfer.begin + transfer.seconds;
    } else {
      end.left = transfer.seconds;
    }
    for (const int stage : stages) {
      Clock& clock = clocks_[static_cast<size_t>(stage)];
      if (overlap_.possible) clock.busy_until = std::max(clock.busy_until, end.now);
      bucket.arrivals[static_cast<size_t>(stage)] = end;
    }
  }
  under_way_[op.number].push_back(std::move(bucket));
}

/// `alone`: seconds of a message without bytes.
void StageSimulator::send(const StageMessage& message, double alone, UnderWay& to) {
  Clock &from = clocks_[static_cast<size_t>(message.from)],
        &at = clocks_[static_cast<size_t>(message.to)];
  Arrival& arrival = to.arrivals[static_cast<size_t>(message.to)];
  arrival.free = std::max(arrival.free, from.free);
  arrival.only_compute = std::max(arrival.only_compute, from.only_compute);
  double seconds = costs_.collective(CollectiveKind::exchange, message.bytes, {axis_});
  if (!overlap_.possible) {
    arrival.now = std::max(arrival.now, from.now);
    arrival.left += seconds;
    return;
  }
  const double passing = std::max(0.0, seconds - alone);
  const double begin = first_free(at.in, std::max(from.now, from.out), passing);
  // The receiver may still compute: then both take longer. Its clock is at the end of that work.
  const double work = std::max(0.0, at.work_end - std::max(begin, at.work_begin));
  const double slower =
      std::min(seconds * (overlap_.transfer - 1), work * (1 - 1 / overlap_.transfer));
  seconds += slower;
  const double both = std::min(work, seconds);
  const double slowed = both * (1 - 1 / overlap_.compute);
  at.now += slowed;
  time_.slowed += slowed;
  arrival.now = std::max(arrival.now, begin + seconds);
  from.out = begin + passing + slower;
  if (from.out > begin) at.in[begin] = from.out;
  from.busy_until = std::max(from.busy_until, from.out);
  at.busy_until = std::max(at.busy_until, arrival.now);
  if (message.from == 0 || message.to == 0) {
    StageTransfer& transfer = time_.transfers[to.transfer];
    if (transfer.end < transfer.begin) transfer.begin = begin;
    transfer.end = begin + seconds;
  }
}

void StageSimulator::wait(const StageOp& op, const std::vector<int>& stages) {
  std::deque<UnderWay>& started = under_way_[op.number];
  if (started.empty()) return;
  const UnderWay bucket = std::move(started.front());
  started.pop_front();
  StageTransfer& transfer = time_.transfers[bucket.transfer];
  for (const int stage : stages) {
    Clock& clock = clocks_[static_cast<size_t>(stage)];
    const Arrival& arrival = bucket.arrivals[static_cast<size_t>(stage)];
    const double late = clock.now - clock.free;
    clock.now = std::max(clock.now, arrival.now) + arrival.left;
    clock.free = std::max(clock.free, arrival.free);
    clock.only_compute = std::max(clock.only_compute, arrival.only_compute);
    transfer.exposed += std::max(0.0, clock.now - clock.free - late);
    if (arrival.left > 0 && stage == 0)
      transfer.begin = clock.now - arrival.left, transfer.end = clock.now;
  }
}

void StageSimulator::meet(const std::vector<int>& stages) {
  double Clock::*const times[] = {&Clock::now, &Clock::free, &Clock::only_compute};
  for (double Clock::*time : times) {
    double last = 0;
    for (const int stage : stages) last = std::max(last, clocks_[static_cast<size_t>(stage)].*time);
    for (const int stage : stages) clocks_[static_cast<size_t>(stage)].*time = last;
  }
}

}  // namespace tessera
