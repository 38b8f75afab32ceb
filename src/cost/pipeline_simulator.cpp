// Each stage has a fixed list of works (program/pipeline_table.h). Repeated passes over the stages
// run whatever is ready, until all lists are done. A work is ready when its input has arrived.
#include "cost/pipeline_simulator.h"

#include <algorithm>

#include "base/fail.h"
#include "program/schedules/schedules.h"

namespace tessera {

namespace {

int64_t chunks_of_stage(const Pipeline& p) {
  return static_cast<int64_t>(p.chunks.size()) / p.stages;
}

/// The chunks of a stage forward, then backward.
PipelineTable table_of(const Pipeline& p) {
  const ScheduleRow& schedule = schedule_row(p.schedule);
  const int64_t chunks = chunks_of_stage(p);
  return schedule.table({passes_of(schedule, chunks), p.stages, p.microbatches, chunks > 1});
}

class Simulator {
 public:
  explicit Simulator(const Pipeline& p)
      : p_(p),
        table_(table_of(p)),
        ends_(table_.passes().size() * static_cast<size_t>(p.stages * p.microbatches), -1) {
    int next = 0, last = static_cast<int>(chunks_of_stage(p)) - 1;
    for (const PipelinePass& pass : table_.passes()) {
      const bool is_weights = pass.work == StageWork::weights;
      chunks_.push_back(pass.work == StageWork::forward ? next++
                        : is_weights                    ? chunks_.back()
                                                        : last--);
    }
  }

  PipelineTime run() {
    std::vector<std::vector<ScheduledWork>> lists;
    for (int s = 0; s < p_.stages; ++s) lists.push_back(table_.works_of(s));
    std::vector<size_t> next(lists.size(), 0);
    time_.stage_end.assign(lists.size(), 0);
    time_.busy.assign(lists.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t s = 0; s < lists.size(); ++s) {
        while (next[s] < lists[s].size() && runs(lists[s][next[s]], static_cast<int>(s))) {
          ++next[s];
          moved = true;
        }
      }
    }
    for (size_t s = 0; s < lists.size(); ++s)
      TESSERA_CHECK(next[s] == lists[s].size(), "stage {} of the pipeline waits for ever", s);
    time_.seconds = *std::max_element(time_.stage_end.begin(), time_.stage_end.end());
    return std::move(time_);
  }

 private:
  double& end_of(const ScheduledWork& work, int64_t stage) {
    const int64_t pass = static_cast<int64_t>(work.pass);
    return ends_[static_cast<size_t>((pass * p_.stages + stage) * p_.microbatches +
                                     work.microbatch)];
  }

  /// The chunk of the model that a pass runs on a stage.
  int chunk_of(size_t pass, int stage) const {
    const PipelinePass& what = table_.passes()[pass];
    const bool in_order = what.ascends == (what.work == StageWork::forward);
    return chunks_[pass] * p_.stages + (in_order ? stage : p_.stages - 1 - stage);
  }

  double seconds_of(size_t pass, int chunk) const {
    const ChunkTime& time = p_.chunks[static_cast<size_t>(chunk)];
    const bool is_split =
        pass + 1 < table_.passes().size() && table_.passes()[pass + 1].work == StageWork::weights;
    switch (table_.passes()[pass].work) {
      case StageWork::forward:
        return time.forward;
      case StageWork::weights:
        return time.weights;
      default:
        return time.backward - (is_split ? time.weights : 0);
    }
  }

  /// Runs a work if its input is ready.
  bool runs(const ScheduledWork& work, int stage) {
    const std::optional<PassStage> from = table_.source(work.pass, stage),
                                   to = table_.target(work.pass, stage);
    const double ready = from ? end_of({from->pass, work.microbatch}, from->stage) : 0;
    if (ready < 0) return false;
    const bool receives = from && from->stage != stage, sends = to && to->stage != stage;
    double& free = time_.stage_end[static_cast<size_t>(stage)];
    const double begin = std::max(free, ready + (receives ? p_.transfer : 0));
    const int chunk = chunk_of(work.pass, stage);
    const double seconds = seconds_of(work.pass, chunk);
    end_of(work, stage) = begin + seconds;
    free = begin + seconds + (sends && p_.blocking ? p_.transfer : 0);
    time_.busy[static_cast<size_t>(stage)] += seconds;
    time_.spans.push_back(
        {stage, chunk, work.microbatch, table_.passes()[work.pass].work, begin, seconds});
    return true;
  }

  const Pipeline& p_;
  const PipelineTable table_;
  std::vector<int> chunks_;   ///< of a stage, by pass
  std::vector<double> ends_;  ///< by pass, stage and microbatch; -1: it has not run yet
  PipelineTime time_;
};

}  // namespace

double PipelineTime::bubble() const {
  double sum = 0;
  for (double b : busy) sum += b;
  return seconds > 0 ? 1 - sum / seconds / static_cast<double>(busy.size()) : 0;
}

PipelineTime simulate(const Pipeline& p) {
  TESSERA_REQUIRE(p.stages >= 1 && p.microbatches >= 1,
                  "a pipeline of {} stages and {} microbatches", p.stages, p.microbatches);
  TESSERA_REQUIRE(!p.chunks.empty() && p.chunks.size() % static_cast<size_t>(p.stages) == 0,
                  "{} chunks of the model cannot be dealt to {} stages", p.chunks.size(), p.stages);
  TESSERA_REQUIRE(takes_chunks(schedule_row(p.schedule).what, chunks_of_stage(p)),
                  "schedule {} does not take {} chunks of layers a stage; take {}", p.schedule,
                  chunks_of_stage(p), pipeline_schedules()[0].name);
  TESSERA_REQUIRE(
      p.chunks.size() == static_cast<size_t>(p.stages) || p.microbatches % p.stages == 0,
      "interleaved stages need a number of microbatches that {} stages divide; {} are given",
      p.stages, p.microbatches);
  return Simulator(p).run();
}

std::vector<ChunkTime> assign_virtual_stages(const std::vector<int64_t>& layers,
                                             const ChunkTime& layer, const ChunkTime& before,
                                             const ChunkTime& behind) {
  std::vector<ChunkTime> times;
  for (const int64_t n : layers) {
    const auto count = static_cast<double>(n);
    times.push_back({count * layer.forward, count * layer.backward});
  }
  for (const auto& [chunk, end] : {std::pair(&times.front(), &before), {&times.back(), &behind}}) {
    chunk->forward += end->forward;
    chunk->backward += end->backward;
  }
  return times;
}

double microbatches_kept(const Pipeline& p, int stage) {
  return static_cast<double>(table_of(p).most_kept(stage)) /
         static_cast<double>(chunks_of_stage(p));
}

double hand_over(const Costs& costs, double bytes, const std::vector<int>& stage,
                 const std::vector<int>& copies) {
  double ranks = 1;
  for (const int axis : copies) ranks *= costs.mesh().axes()[axis].size;
  return costs.collective(CollectiveKind::exchange, bytes / ranks, stage) +
         costs.collective(CollectiveKind::all_gather, bytes, copies);
}

}  // namespace tessera
