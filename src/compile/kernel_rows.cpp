#include "compile/kernel_rows.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <tuple>

#include "base/fail.h"
#include "base/units.h"
#include "cost/work.h"
#include "program/loop_runs.h"

namespace tessera {

std::string without_numbers(const std::string& name) {
  std::string text;
  for (const char c : name) {
    if (!std::isdigit(static_cast<unsigned char>(c))) {
      text += c;
    } else if (text.empty() || text.back() != '*') {
      text += '*';
    }
  }
  return text;
}

namespace {

/// The highest rate of matmuls in a dtype; 0 if the machine has none.
double matmul_rate(const Machine& machine, DType dtype) {
  double best = 0;
  for (const MatmulRate& p : machine.matmuls) {
    if (p.dtype == to_string(dtype)) best = std::max(best, p.flops);
  }
  return best;
}

/// Operands from memory at its bandwidth, or the flops of matmuls at their rate.
double roofline(const Step& step, const Costs& costs) {
  const Machine& machine = costs.machine();
  const double memory = machine.memory_seconds(static_cast<double>(bytes_touched(step)));
  const KernelCost cost = info_of(step.kernel).cost;
  if (cost == KernelCost::pointwise || step.in.empty()) return memory;
  const double rate = matmul_rate(machine, step.in[0].dtype);
  return std::max(memory, rate > 0 ? flops_done(step, costs.mesh()) / rate : 0);
}

using Key = std::tuple<std::string, std::string, std::string>;

class Rows {
 public:
  explicit Rows(const Costs& costs) : costs_(costs) {}

  /// The row of a step.
  KernelReport& of(const Step& step) {
    const Key key{name_of(step), without_numbers(step.origin.name), step.origin.source};
    KernelReport& row = rows_[key];
    std::tie(row.kernel, row.tensor, row.source) = key;
    return row;
  }

  /// A step, or the steps of a loop, each in its own row.
  void count(const Step& step, int64_t times, const std::map<const Step*, double>& measured) {
    for (const Function& body : step.body) {
      for (const Step& inner : body.steps) count(inner, body_runs(step.loop, times), measured);
    }
    if (!step.body.empty() || step.kind != StepKind::compute) return;
    KernelReport& row = of(step);
    row.times += times;
    row.flops += times * static_cast<int64_t>(flops_done(step, costs_.mesh()));
    row.bytes += times * bytes_touched(step);
    row.seconds += static_cast<double>(times) * costs_.compute(step);
    row.roofline += static_cast<double>(times) * roofline(step, costs_);
    if (const auto at = measured.find(&step); at != measured.end()) row.measured += at->second;
  }

  template <class Before>
  std::vector<KernelReport> sorted(Before before) {
    std::vector<KernelReport> rows;
    for (auto& [key, row] : rows_) rows.push_back(std::move(row));
    std::stable_sort(rows.begin(), rows.end(), before);
    return rows;
  }

 private:
  const Costs& costs_;
  std::map<Key, KernelReport> rows_;
};

}  // namespace

std::vector<KernelReport> kernel_rows(const Function& function, const Costs& costs,
                                      const std::map<const Step*, double>& measured) {
  Rows rows(costs);
  for (const Step& step : function.steps) rows.count(step, 1, measured);
  if (measured.empty())
    return rows.sorted([](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return rows.sorted([](const auto& a, const auto& b) {
    return a.measured - a.roofline > b.measured - b.roofline;
  });
}

namespace {
constexpr double kLeastShare = 1e-3;

void add_to(KernelReport& sum, const KernelReport& k) {
  sum.times += k.times;
  sum.flops += k.flops;
  sum.bytes += k.bytes;
  sum.seconds += k.seconds;
  sum.roofline += k.roofline;
}
}  // namespace

std::string kernel_table(const Explanation& e) {
  std::string text;
  for (const FunctionReport& f : e.functions) {
    if (f.kernels.empty() || f.is_init) continue;
    KernelReport sum, others;
    for (const KernelReport& k : f.kernels) add_to(sum, k);
    text += fmt::format(
        "kernels of {} on {}, predicted\n  {:>6} {:>10} {:>10} {:>8} {:>11} {:>11}  {}\n", f.name,
        e.machine, "share", "ms", "roofline", "launches", "FLOP", "bytes", "kernel");
    const auto add = [&](const KernelReport& k, const std::string& what) {
      text += fmt::format("  {:>5.1f}% {:>10.3f} {:>10.3f} {:>8} {:>11.3e} {:>11.3e}  {}\n",
                          sum.seconds > 0 ? 100 * k.seconds / sum.seconds : 0, 1e3 * k.seconds,
                          1e3 * k.roofline, k.times, static_cast<double>(k.flops),
                          static_cast<double>(k.bytes), what);
    };
    int left_out = 0;
    for (const KernelReport& k : f.kernels) {
      if (k.seconds >= kLeastShare * sum.seconds) {
        add(k, fmt::format("{} {}{}", k.kernel, k.tensor,
                           k.source.empty() ? "" : fmt::format(" ({})", k.source)));
      } else {
        add_to(others, k);
        ++left_out;
      }
    }
    if (left_out > 0) add(others, fmt::format("{} others", left_out));
    add(sum, "all");
  }
  return text;
}

}  // namespace tessera
