// Time jumps from event to event. An event is the end of a lane's first transfer, or of compute
// work.
#include "cost/stream_simulator.h"

#include <algorithm>
#include <limits>

namespace tessera {

bool StreamSimulator::is_busy() const {
  return std::any_of(queues_.begin(), queues_.end(), [](const auto& q) { return !q.empty(); });
}

void StreamSimulator::compute(double seconds, int id) {
  const double begin = now_;
  computed_ += seconds;
  while (seconds > 0) {
    const bool both = overlap_.possible && is_busy();
    const double rate = both ? 1 / overlap_.compute : 1;
    double dt = seconds / rate;
    if (both) dt = std::min(dt, next_end(1 / overlap_.transfer));
    seconds = dt >= seconds / rate ? 0 : seconds - dt * rate;
    slowed_ += dt * (1 - rate);
    if (both) {
      advance(dt, 1 / overlap_.transfer);
    } else {
      now_ += dt;
    }
  }
  spans_.push_back({id, 0, begin, now_ - begin});
}

int StreamSimulator::start(double seconds, int lane, int id) {
  if (static_cast<size_t>(lane) > queues_.size()) queues_.resize(static_cast<size_t>(lane));
  const int number = static_cast<int>(exposed_.size());
  queues_[static_cast<size_t>(lane) - 1].push_back({number, id, seconds, -1});
  exposed_.push_back(0);
  seconds_.push_back(seconds);
  begin_heads();
  end_heads();
  return number;
}

void StreamSimulator::wait(int transfer) {
  for (size_t lane = 0; lane < queues_.size(); ++lane) {
    while (std::any_of(queues_[lane].begin(), queues_[lane].end(),
                       [&](const Transfer& t) { return t.number == transfer; }))
      hold(lane);
  }
  hold_at_least(transfer);
}

void StreamSimulator::hold_at_least(int transfer) {
  const auto number = static_cast<size_t>(transfer);
  const double more = std::min(overlap_.posting, seconds_[number]) - exposed_[number];
  if (more <= 0) return;
  exposed_[number] += more;
  advance(more, 1);
}

void StreamSimulator::wait_all() {
  for (size_t lane = 0; lane < queues_.size(); ++lane) {
    while (!queues_[lane].empty()) hold(lane);
  }
}

void StreamSimulator::hold(size_t lane) {
  const double dt = queues_[lane].front().left;
  exposed_[static_cast<size_t>(queues_[lane].front().number)] += dt;
  advance(dt, 1);
}

double StreamSimulator::next_end(double rate) const {
  double least = std::numeric_limits<double>::infinity();
  for (const auto& queue : queues_) {
    if (!queue.empty()) least = std::min(least, queue.front().left / rate);
  }
  return least;
}

void StreamSimulator::begin_heads() {
  for (auto& queue : queues_) {
    if (!queue.empty() && queue.front().begin < 0) queue.front().begin = now_;
  }
}

/// Removes finished transfers.
void StreamSimulator::end_heads() {
  constexpr double kRounding = 1e-15;
  for (size_t lane = 0; lane < queues_.size(); ++lane) {
    auto& queue = queues_[lane];
    while (!queue.empty() && queue.front().left <= kRounding) {
      const double begin = queue.front().begin < 0 ? now_ : queue.front().begin;
      spans_.push_back({queue.front().id, static_cast<int>(lane) + 1, begin, now_ - begin});
      queue.pop_front();
    }
  }
  begin_heads();
}

void StreamSimulator::advance(double dt, double rate) {
  for (double left = dt; left > 0;) {
    const double step = std::min(left, next_end(rate));
    for (auto& queue : queues_) {
      if (!queue.empty()) queue.front().left -= step * rate;
    }
    now_ += step;
    left -= step;
    end_heads();
  }
}

}  // namespace tessera
