#include "plan/choice/step_sum.h"

#include <algorithm>

namespace tessera {

namespace {

/// True for matmuls and other kernels, which stay steps whatever is fused.
bool is_kernel(const Step& step) {
  if (step.kind != StepKind::compute || !step.body.empty()) return false;
  const KernelInfo& info = info_of(step.kernel);
  return !info.is_copy && (info.fusion == Fusion::none || info.fusion == Fusion::epilogue);
}

}  // namespace

void LeastTimes::add(const Lane& lane, double seconds) {
  for (auto& [own, sum] : sent) {
    if (own != lane) continue;
    sum += seconds;
    return;
  }
  sent.emplace_back(lane, seconds);
}

void LeastTimes::add(const LeastTimes& times, double weight) {
  kernels += weight * times.kernels;
  beside += weight * times.beside;
  chain += weight * times.chain;
  for (const auto& [lane, seconds] : times.sent) add(lane, weight * seconds);
}

double StepWeights::of(const Lane& lane) const {
  for (const auto& [own, weight] : lanes) {
    if (own == lane) return weight;
  }
  return 0;
}

double StepWeights::of(const LeastTimes& times) const {
  double seconds = compute * times.kernels + beside * times.beside + chain * times.chain;
  for (const auto& [lane, sent] : times.sent) seconds += of(lane) * sent;
  return seconds;
}

double step_sum(const Function& function, const Costs& costs) {
  double seconds = 0;
  for (const Step& step : function.steps) {
    if (step.kind == StepKind::compute && step.body.empty() && step.kernel != KernelKind::copy)
      seconds += costs.compute(step);
    if (step.kind == StepKind::collective) seconds += costs.collective(step);
  }
  return seconds;
}

LeastTimes least_times(const Function& function, const Costs& costs) {
  LeastTimes times;
  for (const Step& step : function.steps) {
    if (is_kernel(step)) times.kernels += costs.compute(step);
    if (step.kind != StepKind::collective) continue;
    const double seconds = costs.collective(step);
    times.chain += seconds;
    times.add(step.axes, std::max(0.0, seconds - costs.start(step)));
  }
  return times;
}

ByPhase<LeastTimes> shared_sum(const Program& program, const Function& function, const Costs& costs,
                               int64_t ranks, const std::vector<int64_t>& microbatches,
                               const std::function<Place(const std::string&)>& place_of) {
  std::vector<char> follows(program.buffers.size(), 0);  // a kernel
  std::vector<char> is_after(program.buffers.size(), 0);
  ByPhase<LeastTimes> times;
  for (const Step& step : function.steps) {
    if (step.kind == StepKind::collective) {
      for (std::vector<char>* of : {&follows, &is_after}) {
        for (const View& from : step.in) {
          for (const View& to : step.out)
            (*of)[static_cast<size_t>(to.buffer)] |= (*of)[static_cast<size_t>(from.buffer)];
        }
      }
    }
    if (step.kind != StepKind::compute) continue;
    const bool counts =
        is_kernel(step) || std::any_of(step.in.begin(), step.in.end(), [&](const View& view) {
          return follows[static_cast<size_t>(view.buffer)] != 0;
        });
    if (!counts) continue;
    auto [phase, beside] = place_of(step.origin.name);
    for (const View& view : step.in) {
      if (is_after[static_cast<size_t>(view.buffer)] != 0) phase = Phase::after;
    }
    for (const View& view : step.out) {
      follows[static_cast<size_t>(view.buffer)] = 1;
      if (phase == Phase::after) is_after[static_cast<size_t>(view.buffer)] = 1;
    }
    if (is_kernel(step) || !step.body.empty() || info_of(step.kernel).is_copy) continue;
    LeastTimes& to = times[static_cast<size_t>(phase)];
    double least = costs.compute(step, 1 / static_cast<double>(ranks));
    for (const int64_t n : microbatches) {
      const auto parts = static_cast<double>(n);
      least = std::min(least, parts * costs.compute(step, 1 / parts / static_cast<double>(ranks)));
    }
    (beside ? to.beside : to.kernels) += least;
  }
  return times;
}

double sent_alone(const Costs& costs, CollectiveKind kind, double bytes, const Lane& lane) {
  return std::max(0.0, costs.collective(kind, bytes, lane) - costs.collective(kind, 0, lane));
}

}  // namespace tessera
