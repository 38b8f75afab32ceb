// A bucket whose results are read at once leaves the compute lane idle. Steps right before it that
// nothing needs until it has ended move behind its start, the nearest first, until it is hidden:
//   u = pointwise(g, f)                  s = reduce sum(g, x)
//   s = reduce sum(g, x)            ->   start all_reduce(s)
//   start all_reduce(s); wait            u = pointwise(g, f)
//   v = pointwise(u, s)                  wait
//                                        v = pointwise(u, s)
// A bucket on the way, which nothing that stays needs, moves along: it starts after the awaited
// one. No step passes another wait, or a kernel (a matmul, a convolution) that stays. So what a
// kernel makes is sent beside nothing that was before the kernel, on which the planner's bounds
// rely (plan/exposed_reductions.h, plan/tensor_layouts/step_order.h).
#include "lower/passes/fill_waits.h"

#include <algorithm>
#include <set>

#include "lower/passes/liveness.h"
#include "program/kernels.h"

namespace tessera {

namespace {

class Filler {
 public:
  Filler(const Program& program, Function& function, const StepPrices& prices)
      : program_(program), function_(function), steps_(function.steps), prices_(prices) {}

  bool run() {
    bool any = false;
    const int64_t peak = peak_live_bytes(program_, function_);
    for (size_t s = 0; s < steps_.size(); ++s) {
      if (steps_[s].kind != StepKind::collective) continue;
      size_t wait = s;
      while (wait < steps_.size() && steps_[wait].kind == StepKind::collective) ++wait;
      if (wait < steps_.size() && steps_[wait].kind == StepKind::wait && fill(s, wait)) {
        if (peak_live_bytes(program_, function_) <= peak) {
          any = true;
        } else {
          undo();
        }
      }
      s = wait;
    }
    return any;
  }

 private:
  /// What steps read and write.
  struct Touched {
    std::set<int> reads, writes;

    void add(const Step& step) {
      for (const View& v : step.in) reads.insert(v.buffer);
      for (const View& v : step.out) writes.insert(v.buffer);
    }
    bool meets(const Step& step) const {
      return std::any_of(step.in.begin(), step.in.end(),
                         [&](const View& v) { return writes.contains(v.buffer); }) ||
             std::any_of(step.out.begin(), step.out.end(), [&](const View& v) {
               return writes.contains(v.buffer) || reads.contains(v.buffer);
             });
    }
  };

  static bool is_plain(const Step& step) {
    return step.kind == StepKind::compute && step.body.empty();
  }

  static std::ptrdiff_t at(size_t place) { return static_cast<std::ptrdiff_t>(place); }

  /// The time of the bucket that work between the wait and the first use of a result leaves.
  double idle_after(size_t start, size_t wait) const {
    const std::span<const Step> members(&steps_[start], wait - start);
    double idle = prices_.transfer * prices_.of_bucket(members);
    Touched sent;
    for (const Step& member : members) sent.add(member);
    for (size_t s = wait + 1; s < steps_.size() && idle > 0; ++s) {
      if (!is_plain(steps_[s]) || sent.meets(steps_[s])) break;
      idle -= prices_.seconds(steps_[s]);
    }
    return idle;
  }

  /// Moves steps [begin, middle) behind [middle, end).
  void move(size_t begin, size_t middle, size_t end) {
    std::rotate(steps_.begin() + at(begin), steps_.begin() + at(middle), steps_.begin() + at(end));
    moved_.push_back({begin, begin + end - middle, end});
  }

  void undo() {
    const std::vector<Moved> moved = std::move(moved_);
    for (auto m = moved.rbegin(); m != moved.rend(); ++m) move(m->begin, m->middle, m->end);
  }

  bool fill(size_t start, size_t wait) {
    double idle = idle_after(start, wait);
    Touched stay;
    for (size_t s = start; s < wait; ++s) stay.add(steps_[s]);
    size_t last = wait;  // where moved steps begin
    moved_.clear();
    for (size_t s = start; s-- > 0 && idle > 0;) {
      const Step& step = steps_[s];
      const size_t end = s + 1;
      if (step.kind == StepKind::wait) {  // another bucket, which may start later
        while (s > 0 && steps_[s - 1].kind == StepKind::collective) --s;
        const bool is_filled = s + 1 == end;
        if (is_filled || std::any_of(steps_.begin() + at(s), steps_.begin() + at(end - 1),
                                     [&](const Step& member) { return stay.meets(member); }))
          break;
      } else if (!is_plain(step)) {
        break;
      } else if (stay.meets(step)) {
        if (is_kernel(step)) break;
        stay.add(step);
        continue;
      } else {
        idle -= prices_.seconds(step);
      }
      move(s, end, last);
      last -= end - s;
    }
    return last < wait;
  }

  /// What takes a move back.
  struct Moved {
    size_t begin, middle, end;
  };

  const Program& program_;
  const Function& function_;
  std::vector<Step>& steps_;
  const StepPrices& prices_;
  std::vector<Moved> moved_;  ///< by the last fill()
};

}  // namespace

bool is_kernel(const Step& step) {
  const KernelInfo& info = info_of(step.kernel);
  return !info.is_copy && (info.fusion == Fusion::none || info.fusion == Fusion::epilogue);
}

bool fill_waits(Program& program, const StepPrices& prices) {
  bool any = false;
  for (Function& f : program.functions) any |= Filler(program, f, prices).run();
  return any;
}

}  // namespace tessera
