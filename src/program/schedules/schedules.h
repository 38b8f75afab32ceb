// All schedules of pipelines. A new one is a file with a function like these, and a line here and
// in list.cpp.
#pragma once

#include "program/pipeline_table.h"
#include "tessera/pipeline_schedules.h"

namespace tessera {

struct ScheduleRow {
  PipelineSchedule what;
  /// Any numbers of stages and microbatches.
  PipelineTable (*table)(const PipelineShape& shape);
  /// For how many microbatches a stage keeps what its layers need backward, at most: of all its
  /// chunks together.
  double (*kept)(double stages, double microbatches, double chunks);
  /// Which stages have which chunks of layers. False: each chunk goes over the stages in ascending
  /// order. True: every second one turns back, so that of P stages, stage s has the chunks s,
  /// 2P - 1 - s, 2P + s, ... of the model.
  bool turns = false;
  /// A pass begins when the one before has ended on all stages: each is a loop of its own.
  bool in_turn = false;
  /// The least time that a stage is idle, as a share of that with 1F1B and as many chunks.
  double least_idle = 1;
};

ScheduleRow one_forward_one_backward();
ScheduleRow gpipe();
ScheduleRow interleaved();
ScheduleRow zb_h1();
ScheduleRow zb_v();

const std::vector<ScheduleRow>& schedule_rows();
/// Throws a usage error with the nearest name.
const ScheduleRow& schedule_row(const std::string& name);
/// The passes of a model whose layers are `chunks` chunks a stage: all forward, then all backward.
std::vector<PipelinePass> passes_of(const ScheduleRow& schedule, int64_t chunks);

}  // namespace tessera
