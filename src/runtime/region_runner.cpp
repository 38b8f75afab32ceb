#include "runtime/region_runner.h"

#include <algorithm>

#include "base/fail.h"
#include "program/loop_runs.h"
#include "runtime/profiler_range.h"

namespace tessera {

namespace {

/// Launches of a captured loop: each is a node of the graph, a kilobyte or so on host and device.
constexpr int64_t kMostLaunches = 32768;

int64_t launches_of(const BoundStep& bound) {
  if (!bound.loop) return 1;
  int64_t iteration = 1;
  for (const BoundStep& inner : bound.loop->iterations[0]) iteration += launches_of(inner);
  return iterations_of(bound.step->loop) * iteration;
}

bool has_collective(const std::vector<BoundStep>& steps, size_t first, size_t last) {
  for (size_t s = first; s < last; ++s) {
    if (steps[s].bucket != nullptr) return true;
    if (steps[s].loop == nullptr) continue;
    const std::vector<BoundStep>& body = steps[s].loop->iterations[0];
    if (has_collective(body, 0, body.size())) return true;
  }
  return false;
}

bool reads_conditions(const BoundLoop& loop) {
  return std::any_of(loop.conditions.begin(), loop.conditions.end(),
                     [](const void* c) { return c != nullptr; });
}

/// Why a step cannot be captured; empty if it can.
std::string why_not_captured(const Device& device, const BoundStep& bound) {
  if (bound.kernel) return device.why_not_captured(*bound.kernel);
  if (bound.bucket) return device.why_not_captured(*bound.bucket->operation);
  if (!bound.loop) return "";
  if (reads_conditions(*bound.loop)) return "the condition of its loop is read by the host";
  for (const auto& iteration : bound.loop->iterations) {
    for (const BoundStep& inner : iteration) {
      const std::string why = why_not_captured(device, inner);
      if (!why.empty()) return fmt::format("[{}] in its loop: {}", inner.step->origin.name, why);
    }
  }
  const int64_t launches = launches_of(bound);
  if (launches > kMostLaunches)
    return fmt::format("its loop has {} launches, more than {}", launches, kMostLaunches);
  return "";
}

}  // namespace

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
      why.push_back(why_not_captured(rank.device, bound));
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
  if (!has_collective(steps, range.first, range.last) || rank_.world.size() == 1) return recorded;
  return rank_.world.on_all(recorded, "steps that all ranks recorded");
}

size_t first_store(const Function& function) {
  return function.updates ? static_cast<size_t>(function.first_update) : function.steps.size();
}

std::string why_waits(const Device& device, const std::vector<BoundStep>& steps) {
  for (const BoundStep& bound : steps) {
    std::string why;
    if (bound.loop) {
      if (reads_conditions(*bound.loop)) why = "the condition of its loop is read by the host";
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
