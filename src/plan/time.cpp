// The two kinds of lanes as a fluid: while the compute lane has work of w undisturbed seconds and a
// transfer is under way, a moment dt does dt / Overlap::compute of it, and dt / Overlap::transfer
// of the transfers. Nothing happens between two events (a lane's head ends, the compute work ends),
// so time goes from event to event.
#include <algorithm>
#include <deque>
#include <limits>
#include <map>

#include "base/fail.h"
#include "plan/cost.h"

namespace tessera {

namespace {

struct Transfer {
  int number = -1;
  int row = 0;  ///< in FunctionTime::collectives
  double left = 0, begin = -1;
};

struct Lane {
  std::vector<int> axes;
  std::deque<Transfer> queue;
};

class Player {
 public:
  Player(const Costs& costs, bool spans) : costs_(costs), spans_(spans) {}

  void play(std::span<const Step> steps) {
    for (size_t s = 0; s < steps.size(); ++s) {
      const Step& step = steps[s];
      switch (step.kind) {
        case StepKind::compute:
          compute(static_cast<int>(s), costs_.compute(step));
          break;
        case StepKind::collective: {
          size_t end = s + 1;
          while (end < steps.size() && steps[end].kind == StepKind::collective &&
                 steps[end].number == step.number)
            ++end;
          start(static_cast<int>(s), steps.subspan(s, end - s));
          s = end - 1;
          break;
        }
        case StepKind::wait:
          wait(step.number);
          break;
      }
    }
    while (is_busy()) hold(first_busy());
  }

  FunctionTime finish() {
    for (const CollectiveTime& c : time_.collectives) {
      auto it = std::find_if(time_.by_axes.begin(), time_.by_axes.end(),
                             [&](const AxisTime& a) { return a.axes == c.axes; });
      if (it == time_.by_axes.end()) it = time_.by_axes.insert(it, {c.axes, 0, 0, 0});
      it->bytes += c.bytes;
      it->seconds += c.seconds;
      it->exposed += c.exposed;
      time_.exposed += c.exposed;
    }
    time_.seconds = now_;
    return std::move(time_);
  }

 private:
  bool is_busy() const {
    return std::any_of(lanes_.begin(), lanes_.end(),
                       [](const Lane& l) { return !l.queue.empty(); });
  }

  size_t first_busy() const {
    size_t lane = 0;
    while (lanes_[lane].queue.empty()) ++lane;
    return lane;
  }

  void compute(int step, double work) {
    const double begin = now_;
    time_.compute += work;
    while (work > 0) {
      const bool both = is_busy() && costs_.machine().overlap.possible;
      const double rate = both ? 1 / costs_.machine().overlap.compute : 1;
      double dt = work / rate;
      if (both) dt = std::min(dt, next_end(1 / costs_.machine().overlap.transfer));
      work = dt >= work / rate ? 0 : work - dt * rate;
      time_.slowed += dt * (1 - rate);
      if (both) {
        advance(dt, 1 / costs_.machine().overlap.transfer);
      } else {
        now_ += dt;
      }
    }
    if (spans_) time_.spans.push_back({step, 0, begin, now_ - begin});
  }

  void start(int first, std::span<const Step> members) {
    CollectiveTime row{first, static_cast<int>(members.size()), members[0].axes,
                       0,     costs_.exchange(members),         0};
    for (const Step& member : members) row.bytes += member.bytes;
    size_t lane = 0;
    while (lane < lanes_.size() && lanes_[lane].axes != row.axes) ++lane;
    if (lane == lanes_.size()) lanes_.push_back({row.axes, {}});
    lanes_[lane].queue.push_back(
        {members[0].number, static_cast<int>(time_.collectives.size()), row.seconds, -1});
    time_.collectives.push_back(std::move(row));
    begin_heads();
  }

  /// Holds the compute lane until exchange `number` is complete.
  void wait(int number) {
    for (size_t lane = 0; lane < lanes_.size(); ++lane) {
      auto& queue = lanes_[lane].queue;
      auto is_there = [&] {
        return std::any_of(queue.begin(), queue.end(),
                           [&](const Transfer& t) { return t.number == number; });
      };
      while (is_there()) hold(lane);
    }
  }

  /// Until the head of the lane ends, with nothing to compute meanwhile.
  void hold(size_t lane) {
    const Transfer& head = lanes_[lane].queue.front();
    const double dt = head.left;
    time_.collectives[head.row].exposed += dt;
    advance(dt, 1);
  }

  double next_end(double rate) const {
    double least = std::numeric_limits<double>::infinity();
    for (const Lane& lane : lanes_) {
      if (!lane.queue.empty()) least = std::min(least, lane.queue.front().left / rate);
    }
    return least;
  }

  void begin_heads() {
    for (Lane& lane : lanes_) {
      if (!lane.queue.empty() && lane.queue.front().begin < 0) lane.queue.front().begin = now_;
    }
  }

  /// Lets dt pass for the heads of all lanes; those that end leave.
  void advance(double dt, double rate) {
    constexpr double kRounding = 1e-15;
    double left = dt;
    while (true) {
      const double step = std::min(left, next_end(rate));
      for (Lane& lane : lanes_) {
        if (!lane.queue.empty()) lane.queue.front().left -= step * rate;
      }
      now_ += step;
      left -= step;
      for (size_t l = 0; l < lanes_.size(); ++l) {
        auto& queue = lanes_[l].queue;
        while (!queue.empty() && queue.front().left <= kRounding) {
          if (spans_)
            time_.spans.push_back({time_.collectives[queue.front().row].step,
                                   static_cast<int>(l) + 1, queue.front().begin,
                                   now_ - queue.front().begin});
          queue.pop_front();
        }
      }
      begin_heads();
      if (left <= 0) return;
      if (!is_busy()) {
        now_ += left;
        return;
      }
    }
  }

  const Costs& costs_;
  bool spans_;
  double now_ = 0;
  std::vector<Lane> lanes_;
  FunctionTime time_;
};

}  // namespace

FunctionTime time_of(const Function& function, const Costs& costs, bool spans) {
  Player player(costs, spans);
  player.play(function.steps);
  return player.finish();
}

}  // namespace tessera
