// The collectives of a rank: what is prepared once, and what is noted when they run.
#include <algorithm>

#include "base/clock.h"
#include "base/fail.h"
#include "runtime/exchange.h"
#include "runtime/executor.h"

namespace tessera {

Communicator& Executor::group(const std::vector<int>& axes) {
  auto it = groups_.find(axes);
  if (it == groups_.end()) {
    int color = 0, key = 0;
    for (size_t a = 0; a < coordinates_.size(); ++a) {
      const bool inside = std::find(axes.begin(), axes.end(), static_cast<int>(a)) != axes.end();
      if (!inside) color = color * program_.axis_sizes[a] + coordinates_[a];
    }
    for (int axis : axes) key = key * program_.axis_sizes[axis] + coordinates_[axis];
    it = groups_.emplace(axes, world_->split(color, key)).first;
  }
  return *it->second;
}

Collective Executor::describe(const Step& step) {
  Collective c;
  c.kind = step.collective;
  c.dtype = step.in[0].dtype;
  c.combiner = step.combiner;
  c.in = address(step.in[0]);
  c.out = address(step.out[0]);
  c.count = step.attrs.get<int64_t>("count", 0);
  c.outer = step.attrs.get<int64_t>("outer", 1);
  c.inner = step.attrs.get<int64_t>("inner", 1);
  c.pre = step.attrs.get<int64_t>("pre", 1);
  c.s = step.attrs.get<int64_t>("s", 1);
  c.mid = step.attrs.get<int64_t>("mid", 1);
  c.c = step.attrs.get<int64_t>("c", 1);
  c.post = step.attrs.get<int64_t>("post", 1);
  c.split_first = step.attrs.get<int64_t>("split_first", 1) != 0;
  c.site = {step.number, step.origin.name + " (" + step.origin.source + ")"};
  if (c.kind == CollectiveKind::exchange) {
    plan_exchange(program_, step, coordinates_, group(step.axes).size(), c);
  }
  return c;
}

std::unique_ptr<Operation> Executor::bind_collectives(std::span<const Step> steps) {
  std::vector<Collective> collectives;
  for (const Step& step : steps) collectives.push_back(describe(step));
  return device_->prepare(group(steps[0].axes), collectives);
}

void Executor::start(Exchange& exchange) {
  const double begin = options_.profile ? host_seconds() : 0;
  exchange.operation->start();
  in_flight_.push_back(&exchange);
  if (!options_.profile) return;
  exchange.started = host_seconds();
  exchange.ended = 0;
  ++exchange.times;
  exchange.now() = {exchange.started - begin, exchange.started, exchange.started};
}

void Executor::wait_for(Exchange& exchange) {
  std::erase(in_flight_, &exchange);
  const double begin = host_seconds();
  if (options_.profile && exchange.ended == 0 && exchange.operation->advance())
    exchange.ended = begin;
  exchange.operation->wait();
  const double end = host_seconds();
  waited_ += end - begin;
  if (!options_.profile) return;
  exchange.now().arrived = begin;
  exchange.now().left = end;
  if (exchange.operation->is_in_background())
    exchange.hidden += (exchange.ended > 0 ? exchange.ended : begin) - exchange.started;
}

/// What is under way goes on; when it is seen to be complete is noted.
void Executor::advance_all() {
  for (Exchange* exchange : in_flight_) {
    const bool complete = exchange->operation->advance();
    if (complete && options_.profile && exchange->ended == 0) exchange->ended = host_seconds();
  }
}

double Executor::hidden(const Step& first) const {
  double sum = 0;
  for (const Exchange& exchange : operations_)
    sum += exchange.first == &first ? exchange.hidden : 0;
  return sum;
}

std::vector<Executor::Held> Executor::held(const Step& first) const {
  std::vector<Held> all;
  for (const Exchange& exchange : operations_) {
    if (exchange.first == &first)
      all.insert(all.end(), exchange.held.begin(), exchange.held.begin() + exchange.kept());
  }
  return all;
}

double Executor::weight_of_held(const Step& first) const {
  int64_t times = 0, kept = 0;
  for (const Exchange& exchange : operations_) {
    if (exchange.first != &first) continue;
    times += exchange.times;
    kept += exchange.kept();
  }
  return kept == 0 ? 0 : static_cast<double>(times) / static_cast<double>(kept);
}

}  // namespace tessera
