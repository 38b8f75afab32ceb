// A bucket whose results are read at once leaves the compute lane idle. Steps right before it that
// nothing needs until it has ended move behind its start, the nearest first, until it is hidden:
//   u = pointwise(g, f)                  s = reduce sum(g, x)
//   s = reduce sum(g, x)            ->   start all_reduce(s)
//   start all_reduce(s); wait            u = pointwise(g, f)
//   v = pointwise(u, s)                  wait
//                                        v = pointwise(u, s)
// No step passes a wait, or a kernel (a matmul, a convolution) that stays. So what a kernel makes
// is sent beside nothing that was before the kernel, on which the planner's bounds rely
// (plan/exposed_reductions.h, plan/choice/step_order.h).
#include "lower/passes/fill_waits.h"

#include <algorithm>
#include <set>

#include "lower/passes/liveness.h"
#include "program/kernels.h"

namespace tessera {

namespace {

class Filler {
 public:
  Filler(Function& function, const StepPrices& prices) : steps_(function.steps), prices_(prices) {}

  bool run() {
    bool any = false;
    for (size_t s = 0; s < steps_.size(); ++s) {
      if (steps_[s].kind != StepKind::collective) continue;
      size_t wait = s;
      while (wait < steps_.size() && steps_[wait].kind == StepKind::collective) ++wait;
      if (wait < steps_.size() && steps_[wait].kind == StepKind::wait) any |= fill(s, wait);
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

  static bool is_kernel(const Step& step) {
    const KernelInfo& info = info_of(step.kernel);
    return !info.is_copy && (info.fusion == Fusion::none || info.fusion == Fusion::epilogue);
  }

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

  bool fill(size_t start, size_t wait) {
    double idle = idle_after(start, wait);
    Touched stay;
    for (size_t s = start; s < wait; ++s) stay.add(steps_[s]);
    size_t last = wait;  // where moved steps begin
    for (size_t s = start; s-- > 0 && idle > 0;) {
      const Step& step = steps_[s];
      if (!is_plain(step)) break;
      if (stay.meets(step)) {
        if (is_kernel(step)) break;
        stay.add(step);
        continue;
      }
      idle -= prices_.seconds(step);
      const auto at = steps_.begin() + static_cast<std::ptrdiff_t>(s);
      std::rotate(at, at + 1, steps_.begin() + static_cast<std::ptrdiff_t>(last));
      --last;
    }
    return last < wait;
  }

  std::vector<Step>& steps_;
  const StepPrices& prices_;
};

}  // namespace

bool fill_waits(Program& program, const StepPrices& prices) {
  bool any = false;
  for (Function& f : program.functions) {
    const std::vector<Step> before = f.steps;
    const int64_t peak = peak_live_bytes(program, f);
    if (!Filler(f, prices).run()) continue;
    const bool grows = peak_live_bytes(program, f) > peak;
    if (grows) f.steps = before;
    any |= !grows;
  }
  return any;
}

}  // namespace tessera
