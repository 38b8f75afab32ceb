#include "plan/tensor_layouts/step_sum.h"

#include <algorithm>

namespace tessera {

namespace {

/// True for matmuls and other kernels, which stay steps whatever is fused.
bool is_kernel(const Step& step) {
  if (step.kind != StepKind::compute || !step.body.empty()) return false;
  const KernelInfo& info = info_of(step.kernel);
  return !info.is_copy && (info.fusion == Fusion::none || info.fusion == Fusion::epilogue);
}

void add_sent(std::vector<std::pair<Lane, double>>& sent, const Lane& lane, double seconds) {
  for (auto& [own, sum] : sent) {
    if (own != lane) continue;
    sum += seconds;
    return;
  }
  sent.emplace_back(lane, seconds);
}

}  // namespace

void LeastTimes::add(const Lane& lane, double seconds) { add_sent(sent, lane, seconds); }

void PlacedTimes::add(const LeastTimes& times, Links beside, int link, double weight) {
  if (times.kernels > 0) kernels[beside] += weight * times.kernels;
  if (link >= 0 && times.chain > 0) chain[link] += weight * times.chain;
  for (const auto& [lane, seconds] : times.sent) add_sent(sent, lane, weight * seconds);
}

void PlacedTimes::add(const PlacedTimes& times, double weight) {
  for (const auto& [links, seconds] : times.kernels) kernels[links] += weight * seconds;
  for (const auto& [link, seconds] : times.chain) chain[link] += weight * seconds;
  for (const auto& [lane, seconds] : times.sent) add_sent(sent, lane, weight * seconds);
}

double PlacedTimes::all_kernels() const {
  double sum = 0;
  for (const auto& [links, seconds] : kernels) sum += seconds;
  return sum;
}

double StepWeights::of(const Lane& lane) const {
  for (const auto& [own, weight] : lanes) {
    if (own == lane) return weight;
  }
  return 0;
}

double StepWeights::of(Links links) const {
  if (links == kNothing) return 0;
  double least = compute;
  for (int l = links.first; l < links.last; ++l)
    least = std::min(least, beside[static_cast<size_t>(l)]);
  return least;
}

double StepWeights::of(const LeastTimes& times, Links links, int link) const {
  double seconds = of(links) * times.kernels;
  if (link >= 0) seconds += chain[static_cast<size_t>(link)] * times.chain;
  for (const auto& [lane, sent] : times.sent) seconds += of(lane) * sent;
  return seconds;
}

double StepWeights::of(const PlacedTimes& times) const {
  double seconds = 0;
  for (const auto& [links, kernels] : times.kernels) seconds += of(links) * kernels;
  for (const auto& [link, sent] : times.chain) seconds += chain[static_cast<size_t>(link)] * sent;
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

namespace {

/// The places of a function's steps: by name, else by those of the steps that they read and that
/// read them.
class StepPlaces {
 public:
  StepPlaces(const Program& program, const Function& function,
             const std::function<std::optional<Place>(const std::string&)>& place_of,
             Place anywhere)
      : steps_(function.steps), places_(steps_.size(), anywhere), known_(steps_.size(), 0) {
    for (size_t s = 0; s < steps_.size(); ++s) {
      const std::optional<Place> named = place_of(steps_[s].origin.name);
      known_[s] = named.has_value();
      if (named) places_[s] = *named;
    }
    // What a buffer holds was computed after these links and perhaps in the second phase.
    std::vector<int> first(program.buffers.size(), 0);
    std::vector<char> is_after(program.buffers.size(), 0);
    for (size_t s = 0; s < steps_.size(); ++s) {
      Place& place = places_[s];
      for (const View& view : steps_[s].in) {
        const auto b = static_cast<size_t>(view.buffer);
        if (!known_[s]) place.around.first = std::max(place.around.first, first[b]);
        if (is_after[b] != 0) place.phase = Phase::after;
      }
      for (const View& view : steps_[s].out) {
        const auto b = static_cast<size_t>(view.buffer);
        first[b] = std::max(first[b], place.around.first);
        if (place.phase == Phase::after) is_after[b] = 1;
      }
    }
    std::vector<int> last(program.buffers.size(), anywhere.around.last);
    std::vector<char> is_before(program.buffers.size(), 0);
    for (size_t s = steps_.size(); s-- > 0;) {
      Place& place = places_[s];
      for (const View& view : steps_[s].out) {
        const auto b = static_cast<size_t>(view.buffer);
        if (known_[s]) continue;
        place.around.last = std::min(place.around.last, last[b]);
        if (is_before[b] != 0 && place.phase == Phase::either) place.phase = Phase::before;
      }
      for (const View& view : steps_[s].in) {
        const auto b = static_cast<size_t>(view.buffer);
        last[b] = std::min(last[b], place.around.last);
        if (place.phase == Phase::before) is_before[b] = 1;
      }
    }
  }

  Place of(size_t step) const { return places_[step]; }

 private:
  const std::vector<Step>& steps_;
  std::vector<Place> places_;
  std::vector<char> known_;
};

}  // namespace

ByPhase<PlacedTimes> shared_sum(
    const Program& program, const Function& function, const Costs& costs, int64_t ranks,
    const std::vector<int64_t>& microbatches,
    const std::function<std::optional<Place>(const std::string&)>& place_of, Place anywhere) {
  const StepPlaces places(program, function, place_of, anywhere);
  std::vector<char> follows(program.buffers.size(), 0);  // a kernel
  ByPhase<PlacedTimes> times;
  for (size_t s = 0; s < function.steps.size(); ++s) {
    const Step& step = function.steps[s];
    if (step.kind == StepKind::wait) continue;
    const bool counts =
        is_kernel(step) || std::any_of(step.in.begin(), step.in.end(), [&](const View& view) {
          return follows[static_cast<size_t>(view.buffer)] != 0;
        });
    if (!counts) continue;
    for (const View& view : step.out) follows[static_cast<size_t>(view.buffer)] = 1;
    if (step.kind != StepKind::compute || is_kernel(step) || !step.body.empty() ||
        info_of(step.kernel).is_copy)
      continue;
    double least = costs.compute(step, 1 / static_cast<double>(ranks));
    for (const int64_t n : microbatches) {
      const auto parts = static_cast<double>(n);
      least = std::min(least, parts * costs.compute(step, 1 / parts / static_cast<double>(ranks)));
    }
    const Place place = places.of(s);
    times[static_cast<size_t>(place.phase)].kernels[place.beside()] += least;
  }
  return times;
}

double sent_alone(const Costs& costs, CollectiveKind kind, double bytes, const Lane& lane) {
  return std::max(0.0, costs.collective(kind, bytes, lane) - costs.collective(kind, 0, lane));
}

}  // namespace tessera
