// Collectives of one kind that go together and are read soon, such as the sums of a batch norm,
// will be one bucket. What is computed between the last of their operands and the first use of a
// result hides it. If that is too little, a compute step above is delayed to the first use, with
// all steps above it that depend on it. None of the awaited collectives may.
#include "lower/passes/fill_waits.h"

#include <algorithm>
#include <limits>
#include <set>
#include <vector>

#include "lower/passes/liveness.h"

namespace tessera {

namespace {

constexpr int kFillWindow =
    48;  ///< steps above a collective that may be delayed, and of a use below
constexpr size_t kFillUnit = 12;  ///< steps that are delayed together
constexpr double kFillLeast =
    0.1;  ///< of what is left to hide: shorter steps are left where they are

class Filler {
 public:
  Filler(Program& program, Function& function, const StepPrices& prices)
      : program_(program), function_(function), steps_(function.steps), prices_(prices) {}

  void run() {
    const std::vector<int64_t> alive = live_bytes(program_, function_);
    peak_ = *std::max_element(alive.begin(), alive.end());
    for (int s = 0; s < function_.first_update; ++s) {
      if (steps_[at(s)].kind != StepKind::collective || seen_.contains(steps_[at(s)].number))
        continue;
      fill(s);
    }
  }

 private:
  /// Collectives that are read soon.
  struct Awaited {
    std::vector<int> members;  ///< places
    int ready = -1;            ///< the last step that an operand waits for
    int use = 0;               ///< the first step that waits for a result
  };

  static size_t at(int s) { return static_cast<size_t>(s); }

  static bool touches(const std::vector<View>& a, const std::vector<View>& b) {
    return std::any_of(a.begin(), a.end(), [&](const View& x) {
      return std::any_of(b.begin(), b.end(),
                         [&](const View& y) { return x.buffer >= 0 && x.buffer == y.buffer; });
    });
  }

  /// True if the two may not change places.
  bool conflicts(const Step& a, const Step& b) const {
    if (a.kind == StepKind::wait || b.kind == StepKind::wait) return a.number == b.number;
    return touches(a.out, b.in) || touches(a.in, b.out) || touches(a.out, b.out);
  }

  /// The first step below that touches what the collective writes; the end of the window if there
  /// is none.
  int use_of(int s) const {
    const int end = std::min(function_.first_update, s + kFillWindow);
    for (int k = s + 1; k < end; ++k) {
      if (steps_[at(k)].kind != StepKind::wait && conflicts(steps_[at(s)], steps_[at(k)])) return k;
    }
    return end;
  }

  int ready_of(int s) const {
    for (int k = s - 1; k >= 0; --k) {
      const Step& step = steps_[at(k)];
      if (step.kind != StepKind::wait && conflicts(step, steps_[at(s)])) return k;
    }
    return -1;
  }

  /// Matmuls and the like. What passes below still merge with their neighbors stays there.
  static bool is_kernel(const Step& step) {
    if (step.kind != StepKind::compute || !step.body.empty()) return false;
    const KernelInfo& info = info_of(step.kernel);
    return !info.is_copy && (info.fusion == Fusion::none || info.fusion == Fusion::epilogue);
  }

  double seconds(const Step& step) const {
    return step.kind == StepKind::compute && step.body.empty() ? prices_.seconds(step) : 0;
  }

  /// False if nothing waits for the collective soon.
  bool find(int s, Awaited& awaited) {
    const int end = std::min(function_.first_update, s + kFillWindow);
    awaited = {{s}, ready_of(s), use_of(s)};
    if (awaited.use >= end) return false;
    for (int k = s + 1; k < awaited.use; ++k) {
      const Step& step = steps_[at(k)];
      if (step.kind != StepKind::collective || step.collective != steps_[at(s)].collective ||
          step.axes != steps_[at(s)].axes)
        continue;
      const int use = use_of(k);
      if (use >= std::min(function_.first_update, k + kFillWindow)) continue;
      awaited.members.push_back(k);
      awaited.ready = std::max(awaited.ready, ready_of(k));
      awaited.use = std::min(awaited.use, use);
    }
    return awaited.ready >= 0;
  }

  void fill(int s) {
    Awaited awaited;
    if (!find(s, awaited)) return;
    std::vector<Step> members;
    for (const int m : awaited.members) {
      members.push_back(steps_[at(m)]);
      seen_.insert(steps_[at(m)].number);
    }
    double left = prices_.transfer * prices_.of_bucket(members);
    const double least = kFillLeast * left;
    for (int k = awaited.ready + 1; k < awaited.use; ++k) left -= seconds(steps_[at(k)]);
    while (left > least) {
      const double filled = delay_one(awaited, left, least);
      if (filled <= 0) return;
      left -= filled;
    }
  }

  /// Delays the step that fits best. Returns its seconds, or 0.
  double delay_one(Awaited& awaited, double left, double least) {
    std::vector<std::pair<double, std::vector<int>>> units;
    for (int d = awaited.ready; d >= std::max(0, awaited.ready - kFillWindow); --d) {
      if (!is_kernel(steps_[at(d)]) || seconds(steps_[at(d)]) < least) continue;
      std::vector<int> unit = unit_of(d, awaited);
      if (unit.empty()) continue;
      double sum = 0;
      for (const int u : unit) sum += seconds(steps_[at(u)]);
      // The shortest that is long enough, else the longest.
      units.emplace_back(sum >= left ? sum - left : 1 + left - sum, std::move(unit));
    }
    std::stable_sort(units.begin(), units.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [order, unit] : units) {
      double sum = 0;
      for (const int u : unit) sum += seconds(steps_[at(u)]);
      size_t behind = 0;
      if (delay(unit, awaited.use, behind)) {
        awaited.ready -= static_cast<int>(
            std::count_if(unit.begin(), unit.end(), [&](int u) { return u <= awaited.ready; }));
        for (int& m : awaited.members)
          m -= static_cast<int>(
              std::count_if(unit.begin(), unit.end(), [&](int u) { return u < m; }));
        awaited.use -= static_cast<int>(behind);
        return sum;
      }
    }
    return 0;
  }

  /// The step and all that depend on it up to the use; empty if these include an awaited
  /// collective, or are many.
  std::vector<int> unit_of(int d, const Awaited& awaited) const {
    std::vector<int> unit{d};
    if (steps_[at(d)].kind != StepKind::compute || !steps_[at(d)].body.empty()) return {};
    for (int k = d + 1; k < awaited.use; ++k) {
      const bool depends = std::any_of(
          unit.begin(), unit.end(), [&](int u) { return conflicts(steps_[at(u)], steps_[at(k)]); });
      if (!depends) continue;
      const bool is_awaited =
          std::find(awaited.members.begin(), awaited.members.end(), k) != awaited.members.end();
      if (is_awaited || !steps_[at(k)].body.empty() || unit.size() == kFillUnit) return {};
      unit.push_back(k);
    }
    return unit;
  }

  /// Moves steps to right before `use`, and what they send right behind it: else it would join the
  /// awaited bucket. `behind`: how many. Not if more bytes would be live than ever before.
  bool delay(const std::vector<int>& unit, int use, size_t& behind) {
    std::vector<int> order;
    for (int k = unit.front(); k < use; ++k) {
      if (std::find(unit.begin(), unit.end(), k) == unit.end()) order.push_back(k);
    }
    const auto sends = std::find_if(unit.begin(), unit.end(), [&](int u) {
      return steps_[at(u)].kind == StepKind::collective;
    });
    if (std::any_of(sends, unit.end(),
                    [&](int u) { return conflicts(steps_[at(u)], steps_[at(use)]); }))
      return false;
    behind = static_cast<size_t>(unit.end() - sends);
    order.insert(order.end(), unit.begin(), sends);
    order.push_back(use);
    order.insert(order.end(), sends, unit.end());
    std::vector<Step> moved;
    for (const int k : order) moved.push_back(std::move(steps_[at(k)]));
    const auto first = steps_.begin() + unit.front();
    std::move(moved.begin(), moved.end(), first);
    const std::vector<int64_t> alive = live_bytes(program_, function_);
    if (*std::max_element(alive.begin(), alive.end()) <= peak_) return true;
    std::vector<Step> back(order.size());
    for (size_t i = 0; i < order.size(); ++i)
      back[at(order[i] - unit.front())] = std::move(*(first + static_cast<std::ptrdiff_t>(i)));
    std::move(back.begin(), back.end(), first);
    return false;
  }

  const Program& program_;
  Function& function_;
  std::vector<Step>& steps_;
  const StepPrices& prices_;
  std::set<int> seen_;  ///< numbers of collectives
  int64_t peak_ = 0;
};

}  // namespace

void fill_waits(Program& program, const StepPrices& prices) {
  if (!prices.seconds) return;
  for (Function& function : program.functions) {
    if (!function.steps.empty()) Filler(program, function, prices).run();
  }
}

}  // namespace tessera
