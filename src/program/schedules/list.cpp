#include <algorithm>

#include "base/fail.h"
#include "program/schedules/schedules.h"

namespace tessera {

const std::vector<ScheduleRow>& schedule_rows() {
  static const std::vector<ScheduleRow> rows = {one_forward_one_backward(), gpipe(), interleaved(),
                                                zb_h1(), zb_v()};
  return rows;
}

const std::vector<PipelineSchedule>& pipeline_schedules() {
  static const std::vector<PipelineSchedule> all = [] {
    std::vector<PipelineSchedule> public_rows;
    for (const ScheduleRow& row : schedule_rows()) public_rows.push_back(row.what);
    return public_rows;
  }();
  return all;
}

const ScheduleRow& schedule_row(const std::string& name) {
  const std::vector<ScheduleRow>& rows = schedule_rows();
  const auto row =
      std::find_if(rows.begin(), rows.end(), [&](const auto& r) { return r.what.name == name; });
  if (row != rows.end()) return *row;
  std::vector<std::string> names;
  for (const ScheduleRow& r : rows) names.push_back(r.what.name);
  fail(ErrorKind::usage, "unknown pipeline_schedule '{}'{}; there are {}", name,
       suggestion(name, names), fmt::join(names, ", "));
}

std::vector<PipelinePass> passes_of(const ScheduleRow& schedule, int64_t chunks) {
  const auto turned = [&](int64_t chunk) { return schedule.turns && chunk % 2 != 0; };
  std::vector<PipelinePass> passes;
  for (int64_t c = 0; c < chunks; ++c) passes.push_back({StageWork::forward, !turned(c)});
  for (int64_t c = chunks - 1; c >= 0; --c) {
    passes.push_back({StageWork::backward, turned(c)});
    if (schedule.what.splits_backward) passes.push_back({StageWork::weights, turned(c)});
  }
  return passes;
}

const PipelineSchedule& pipeline_schedule(const std::string& name) {
  return schedule_row(name).what;
}

bool takes_chunks(const PipelineSchedule& schedule, int64_t chunks) {
  return schedule.least_chunks <= chunks && chunks <= schedule.most_chunks;
}

}  // namespace tessera
