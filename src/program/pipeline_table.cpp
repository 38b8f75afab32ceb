#include "program/pipeline_table.h"

#include <algorithm>
#include <utility>

#include "base/fail.h"

namespace tessera {

const char* to_string(StageWork work) {
  constexpr const char* kNames[] = {"none", "forward", "backward", "weights"};
  return kNames[static_cast<size_t>(work)];
}

PipelineTable::PipelineTable(PipelineShape shape) : shape_(std::move(shape)) {
  const std::vector<int64_t> none(static_cast<size_t>(microbatches()), -1);
  at_.assign(passes().size(), std::vector(static_cast<size_t>(stages()), none));
}

void PipelineTable::set_tick(const ScheduledWork& work, int64_t stage, int64_t tick) {
  at_[work.pass][static_cast<size_t>(stage)][static_cast<size_t>(work.microbatch)] = tick;
  ticks_ = std::max(ticks_, tick + 1);
}

std::optional<PassStage> PipelineTable::source(size_t pass, int64_t stage) const {
  const PipelinePass& what = passes()[pass];
  if (what.work == StageWork::weights) return PassStage{pass - 1, stage};
  if (stage != first_stage(pass)) return PassStage{pass, what.ascends ? stage - 1 : stage + 1};
  while (pass-- > 0) {
    if (passes()[pass].work != StageWork::weights) return PassStage{pass, last_stage(pass)};
  }
  return std::nullopt;
}

std::optional<PassStage> PipelineTable::target(size_t pass, int64_t stage) const {
  const PipelinePass& what = passes()[pass];
  if (what.work == StageWork::weights) return std::nullopt;
  if (stage != last_stage(pass)) return PassStage{pass, what.ascends ? stage + 1 : stage - 1};
  while (++pass < passes().size()) {
    if (passes()[pass].work != StageWork::weights) return PassStage{pass, first_stage(pass)};
  }
  return std::nullopt;
}

std::vector<ScheduledWork> PipelineTable::works_of(int64_t stage) const {
  std::vector<std::pair<int64_t, ScheduledWork>> works;
  for (size_t p = 0; p < passes().size(); ++p) {
    for (int64_t m = 0; m < microbatches(); ++m) works.push_back({tick_of({p, m}, stage), {p, m}});
  }
  std::stable_sort(works.begin(), works.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<ScheduledWork> list;
  for (const auto& [tick, work] : works) list.push_back(work);
  return list;
}

int64_t PipelineTable::most_kept(int64_t stage) const {
  const auto frees = [&](size_t pass) {
    if (passes()[pass].work == StageWork::weights) return true;
    const bool is_split =
        pass + 1 < passes().size() && passes()[pass + 1].work == StageWork::weights;
    return passes()[pass].work == StageWork::backward && !is_split;
  };
  int64_t kept = 0, most = 0;
  for (const ScheduledWork& work : works_of(stage)) {
    kept += passes()[work.pass].work == StageWork::forward ? 1 : 0;
    kept -= frees(work.pass) ? 1 : 0;
    most = std::max(most, kept);
  }
  return most;
}

std::optional<TickDistances> distances_of(const PipelineTable& table, size_t pass) {
  const auto tick = [&](int64_t stage, int64_t m) { return table.tick_of({pass, m}, stage); };
  const TickDistances d{tick(0, 0), tick(0, 1) - tick(0, 0), tick(1, 0) - tick(0, 0)};
  if (d.by_stage != 1 && d.by_stage != -1) return std::nullopt;
  for (int64_t s = 0; s < table.stages(); ++s) {
    for (int64_t m = 0; m < table.microbatches(); ++m) {
      if (tick(s, m) != d.first + d.stride * m + d.by_stage * s) return std::nullopt;
    }
  }
  return d;
}

PipelineTable run_lists(const PipelineShape& shape,
                        const std::vector<std::vector<ScheduledWork>>& lists) {
  PipelineTable table(shape);
  std::vector<size_t> next(lists.size(), 0);
  const auto is_ready = [&](const ScheduledWork& work, int64_t stage) {
    const std::optional<PassStage> source = table.source(work.pass, stage);
    return !source || table.tick_of({source->pass, work.microbatch}, source->stage) >= 0;
  };
  const auto waits = [&](size_t s) { return next[s] < lists[s].size(); };
  const auto any_waits = [&] {
    for (size_t s = 0; s < lists.size(); ++s) {
      if (waits(s)) return true;
    }
    return false;
  };
  for (int64_t tick = 0; any_waits(); ++tick) {
    std::vector<size_t> running;
    for (size_t s = 0; s < lists.size(); ++s) {
      if (waits(s) && is_ready(lists[s][next[s]], static_cast<int64_t>(s))) running.push_back(s);
    }
    TESSERA_CHECK(!running.empty(), "tick {} of a pipeline: all stages wait", tick);
    for (const size_t s : running)
      table.set_tick(lists[s][next[s]++], static_cast<int64_t>(s), tick);
  }
  return table;
}

}  // namespace tessera
