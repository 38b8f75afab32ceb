#include "cli/forecast.h"

#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "tessera/simulate.h"

namespace tessera::cli {

namespace {

constexpr double kOff = 0.1, kMatters = 0.02;
constexpr size_t kShown = 4;

bool is_off(double measured, double planned) {
  return std::abs(measured - planned) > kOff * planned;
}

double difference(const WorkTime& p) { return std::abs(p.measured - p.planned); }

}  // namespace

std::string work_off_plan(std::vector<WorkTime> work, double step_seconds) {
  std::erase_if(work, [&](const WorkTime& p) {
    return !is_off(p.measured, p.planned) || difference(p) < kMatters * step_seconds;
  });
  std::stable_sort(work.begin(), work.end(), [](const WorkTime& a, const WorkTime& b) {
    return difference(a) > difference(b);
  });
  std::string text;
  for (size_t i = 0; i < std::min(work.size(), kShown); ++i)
    text += fmt::format("{}{} {:.2f} ms instead of {:.2f}", i == 0 ? "" : ", ", work[i].name,
                        1e3 * work[i].measured, 1e3 * work[i].planned);
  return text;
}

Forecast::Forecast(const Graph& graph, const CompileOptions& options, const Machine& machine) {
  const Simulation s = simulate(graph, options, machine);
  seconds_ = s.seconds;
  for (const SimulatedStep& step : s.steps) {
    if (step.lane == 0) compute_[step.kernel] += step.seconds;
    if (step.lane != 0) exposed_[step.axes] += step.exposed;
  }
}

std::vector<WorkTime> Forecast::work_of(const Session& session) const {
  std::map<std::string, double> kernels, axes;
  for (const StepTime& s : session.profile()) {
    if (s.function != "train" || s.runs == 0) continue;
    const double seconds = s.seconds / static_cast<double>(s.runs);
    if (!s.axes.empty()) axes[s.axes] += seconds;
    if (compute_.contains(s.kernel)) kernels[s.kernel] += seconds;
  }
  std::vector<WorkTime> all;
  for (const auto& [kernel, planned] : compute_) all.push_back({kernel, planned, kernels[kernel]});
  for (const auto& [names, planned] : exposed_)
    all.push_back({"collectives over " + names, planned, axes[names]});
  return all;
}

std::string Forecast::after_step(int64_t step, double seconds, const Session& session,
                                 const std::string& slow) {
  if (seconds_ == 0) return "";
  if (steps_++ >= 0) sum_ += seconds;
  if (steps_ < kWindow) return "";
  const double mean = sum_ / steps_;
  sum_ = 0;
  steps_ = 0;
  if (!is_off(mean, seconds_)) {
    said_.clear();
    return "";
  }
  std::string off = work_off_plan(work_of(session), mean);
  const std::string first = off.substr(0, off.find(" ms")),
                    what = first.substr(0, first.rfind(' '));
  if (what + slow == said_) return "";
  said_ = what + slow;
  if (!slow.empty()) off += (off.empty() ? "" : "; ") + slow;
  return fmt::format("steps {} to {} took {:.2f} ms, planned were {:.2f} ({:+.0f} %){}{}",
                     step - kWindow + 1, step, 1e3 * mean, 1e3 * seconds_,
                     100 * (mean / seconds_ - 1), off.empty() ? "" : ": ", off);
}

}  // namespace tessera::cli
