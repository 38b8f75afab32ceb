#include "runtime/region_runner.h"

#include <algorithm>

#include "base/fail.h"
#include "runtime/profiler_range.h"

namespace tessera {

RegionRunner::RegionRunner(RankContext& rank, StepRunner& steps,
                           std::vector<std::vector<BoundStep>>& functions)
    : rank_(rank),
      steps_(steps),
      functions_(functions),
      regions_(functions.size()),
      replays_(functions.size()) {
  if (rank.device.is_host()) return;
  for (size_t f = 0; f < functions.size(); ++f) {
    const Function& function = rank.program.functions[f];
    std::vector<std::string> why;
    for (const BoundStep& bound : functions[f]) {
      why.push_back(bound.loop     ? "a loop runs iteration by iteration"
                    : bound.kernel ? rank.device.why_not_captured(*bound.kernel)
                    : bound.bucket ? rank.device.why_not_captured(*bound.bucket->operation)
                                   : "");
    }
    regions_[f] = find_regions(function.steps, std::move(why), first_store(function));
    replays_[f].resize(regions_[f].size());
  }
}

void RegionRunner::run(int function, size_t first, size_t last) {
  std::vector<BoundStep>& steps = functions_[function];
  const std::vector<StepRange>& regions = regions_[function];
  if (regions.empty()) return steps_.run(steps, first, last);
  for (size_t r = 0; r < regions.size(); ++r) {
    if (regions[r].first < first || regions[r].last > last) continue;
    if (!replay(function, r)) steps_.run(steps, regions[r].first, regions[r].last);
  }
}

/// The first run of a region goes step by step, as kernels may have to be loaded; the second one
/// records it. False: it has to be run.
bool RegionRunner::replay(int function, size_t region) {
  const StepRange& range = regions_[function][region];
  Replay& replay = replays_[function][region];
  if (!range.captured || replay.is_refused || steps_.is_measured() || ++replay.runs < 2)
    return false;
  std::vector<BoundStep>& steps = functions_[function];
  if (!replay.launch) {
    const std::string& label = steps[range.first].label;
    if (!label.empty())
      replay.label = fmt::format("{} steps from {}", range.last - range.first, label);
    replay.launch = rank_.device.capture([&] { steps_.run(steps, range.first, range.last); });
    replay.is_refused = !agree(static_cast<bool>(replay.launch), steps, range);
  }
  if (replay.is_refused) return false;
  const ProfilerRange shown(rank_.device, replay.label);
  if (rank_.activity != nullptr) rank_.activity->begin(*steps[range.first].step, true);
  replay.launch();
  return true;
}

/// A collective is replayed by all of its ranks or by none: NCCL allows no mixture. Collective if
/// the region has one.
bool RegionRunner::agree(bool recorded, const std::vector<BoundStep>& steps,
                         const StepRange& range) {
  const auto first = steps.begin() + static_cast<std::ptrdiff_t>(range.first),
             last = steps.begin() + static_cast<std::ptrdiff_t>(range.last);
  const bool has_collective =
      std::any_of(first, last, [](const BoundStep& bound) { return bound.bucket != nullptr; });
  if (!has_collective || rank_.world.size() == 1) return recorded;
  return rank_.world.on_all(recorded, "steps that all ranks recorded");
}

size_t first_store(const Function& function) {
  return function.updates ? static_cast<size_t>(function.first_update) : function.steps.size();
}

std::string why_waits(const Device& device, const std::vector<BoundStep>& steps) {
  for (const BoundStep& bound : steps) {
    std::string why;
    if (bound.loop) {
      const auto& conditions = bound.loop->conditions;
      if (std::any_of(conditions.begin(), conditions.end(), [](const void* c) { return c; }))
        why = "the condition of its loop is read by the host";
      for (const auto& iteration : bound.loop->iterations) {
        if (why.empty()) why = why_waits(device, iteration);
        if (!why.empty()) break;
      }
      if (why.starts_with("[")) return why;
    } else if (bound.kernel) {
      why = device.why_waits(*bound.kernel);
    } else if (bound.bucket) {
      why = device.why_waits(*bound.bucket->operation);
    }
    if (!why.empty())
      return fmt::format("[{}] {} ({})", bound.step->origin.name, why, bound.step->origin.source);
  }
  return "";
}

}  // namespace tessera
