// The exposed time of a bucket is the time from the last rank's arrival until the last rank goes
// on, of every run. The ranks that arrive earlier wait longer, but their peers would have been late
// without any communication, too. The last rank itself may wait less: it may go on while its own
// bytes are still in flight.
#include "session/step_times.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "compile/kernel_info.h"
#include "compile/kernel_rows.h"
#include "cost/function_time.h"
#include "cost/work.h"
#include "program/axes_text.h"
#include "program/loop_runs.h"
#include "session/clock_sync.h"

namespace tessera {

namespace {

/// Bytes of transient memory that a step fills.
int64_t result_bytes(const Program& program, const Step& step) {
  int64_t bytes = 0;
  for (const View& view : step.out) {
    if (program.buffers[view.buffer].arena == ArenaKind::transient)
      bytes += elements_stored(view) * size_of(view.dtype);
  }
  return bytes;
}

/// Of a wait the collective which it ends; else the step.
const Step& waited_for(const Function& function, const Step& step) {
  if (step.kind != StepKind::wait) return step;
  for (const Step& other : function.steps) {
    if (other.kind == StepKind::collective && other.number == step.number) return other;
  }
  return step;
}

constexpr double kFar = std::numeric_limits<double>::infinity();

/// A bucket of a function or of a loop in it.
struct Bucket {
  const Step* first;  ///< of its collectives
  int collectives, times;
  int64_t bytes;
  double exposed = 0;  ///< of all runs
};

void find_buckets(const Function& function, int times, std::vector<Bucket>& found) {
  std::map<int, size_t> of_number;
  for (const Step& step : function.steps) {
    if (step.kind == StepKind::collective) {
      const auto [it, fresh] = of_number.emplace(step.number, found.size());
      if (fresh) found.push_back({&step, 0, times, 0});
      ++found[it->second].collectives;
      found[it->second].bytes += times * step.bytes;
    }
    for (const Function& body : step.body)
      find_buckets(body, static_cast<int>(body_runs(step.loop, times)), found);
  }
}

/// Adds the times that `machine` predicts for the function's buckets.
void predict(const Function& function, const Machine& machine, const Mesh& mesh,
             const std::map<const Step*, BucketTime*>& rows) {
  const std::vector<const Step*> steps = all_steps(function);
  const FunctionTime time = time_of(function, Costs(machine, mesh));
  for (const CollectiveTime& c : time.collectives) {
    BucketTime& row = *rows.at(steps[static_cast<size_t>(c.step)]);
    row.predicted_exposed += c.share * c.exposed;
    row.predicted_hidden += c.share * c.hidden();
  }
}

/// Ranks that are in one group of the axes with `rank`.
std::vector<int> group_of(const Mesh& mesh, int rank, const std::vector<int>& axes) {
  std::vector<int> group;
  for (int other = 0; other < mesh.size(); ++other) {
    bool together = true;
    for (int a = 0; a < mesh.rank(); ++a) {
      together = together && (std::find(axes.begin(), axes.end(), a) != axes.end() ||
                              mesh.coordinates(other)[static_cast<size_t>(a)] ==
                                  mesh.coordinates(rank)[static_cast<size_t>(a)]);
    }
    if (together) group.push_back(other);
  }
  return group;
}

/// Measures Bucket::exposed. Collective.
void find_exposed(Cluster& cluster, const Mesh& mesh, const LocalRanks& ranks,
                  std::vector<Bucket>& found) {
  constexpr size_t kEach = 3;  // numbers of a timestamp
  std::vector<double> mine;
  for (const auto& executor : ranks.executors()) {
    for (const Bucket& bucket : found) {
      for (const BucketTimestamps& t : executor->collectives().timestamps(*bucket.first))
        mine.insert(mine.end(), {t.start, t.arrived, t.left});
    }
  }
  if (mine.empty()) return;
  const std::vector<double> all = cluster.gather(mine), ahead = clock_offsets(cluster);
  const size_t of_rank = mine.size() / ranks.size();
  const CollectiveRunner& collectives = ranks[0].collectives();
  size_t at = 0;
  for (Bucket& bucket : found) {
    const std::vector<int> group = group_of(mesh, ranks[0].world().rank(), bucket.first->axes);
    double sum = 0;
    for (size_t n = collectives.timestamps(*bucket.first).size(); n > 0; --n, at += kEach) {
      double start = kFar, arrived = -kFar, left = -kFar;
      for (const int r : group) {
        const auto member = static_cast<size_t>(r);
        const double* t = &all[member * of_rank + at];
        start = std::min(start, t[0]);
        arrived = std::max(arrived, t[1] - ahead[member]);
        left = std::max(left, t[2] - ahead[member]);
      }
      sum += start + std::max(0.0, left - arrived);
    }
    bucket.exposed = sum * collectives.runs_per_timestamp(*bucket.first);
  }
}

}  // namespace

namespace {

using Totals = std::map<const Step*, Executor::StepTotal>;

/// Bytes that a step touches or sends in a run of the function, in which it runs `times` times.
int64_t bytes_of(const Step& step, int64_t times, const CollectiveRunner& collectives,
                 int64_t runs) {
  if (step.kind == StepKind::compute) return times * bytes_touched(step);
  const bool counts = step.kind == StepKind::collective && step.in.size() > 1;
  return counts ? collectives.sent(step) / runs : times * step.bytes;
}

/// Adds the steps of a function that ran `runs` times, or of a loop's body in it.
void add_rows(const Program& program, const Mesh& mesh, const Function& function,
              const std::string& name, const Totals& totals, const CollectiveRunner& collectives,
              int64_t runs, std::vector<StepTime>& rows) {
  for (const Step& step : function.steps) {
    const auto total = totals.find(&step);
    if (total == totals.end()) continue;
    const Step& begun = waited_for(function, step);
    const int64_t times = (total->second.runs + runs / 2) / runs;  // in a run of the function
    const size_t row = rows.size();
    rows.push_back(
        {name, begun.origin.name, begun.origin.source, name_of(step), runs, total->second.seconds,
         times * std::llround(flops_done(step, mesh)), bytes_of(step, times, collectives, runs),
         result_bytes(program, step), axes_text(program, begun.axes),
         step.kind == StepKind::collective ? std::optional(step.collective) : std::nullopt,
         step.kind == StepKind::wait});
    for (const Function& body : step.body) {
      rows[row].flops = rows[row].bytes = rows[row].results = 0;
      for (const Step& inner : body.steps) {
        if (const auto it = totals.find(&inner); it != totals.end())
          rows[row].seconds -= it->second.seconds;
      }
      add_rows(program, mesh, body, name, totals, collectives, runs, rows);
    }
  }
}

int64_t runs_of(const Function& function, const Totals& totals) {
  const auto first = function.steps.empty() ? totals.end() : totals.find(&function.steps[0]);
  return first == totals.end() ? 0 : first->second.runs;
}

}  // namespace

std::vector<StepTime> step_times(const Program& program, const Mesh& mesh,
                                 const Executor& executor) {
  std::vector<StepTime> rows;
  for (size_t f = 0; f < program.functions.size(); ++f) {
    const Function& function = program.functions[f];
    const Totals totals = executor.times_of(static_cast<int>(f));
    if (const int64_t runs = runs_of(function, totals); runs > 0)
      add_rows(program, mesh, function, function.name, totals, executor.collectives(), runs, rows);
  }
  return rows;
}

std::vector<KernelReport> kernel_times(const Program& program, const Executor& executor,
                                       const std::string& function, const Costs& costs) {
  for (size_t f = 0; f < program.functions.size(); ++f) {
    if (program.functions[f].name != function) continue;
    const Totals totals = executor.times_of(static_cast<int>(f));
    const int64_t runs = runs_of(program.functions[f], totals);
    if (runs == 0) return {};
    std::map<const Step*, double> measured;
    for (const auto& [step, total] : totals)
      measured[step] = total.seconds / static_cast<double>(runs);
    return kernel_rows(program.functions[f], costs, measured);
  }
  return {};
}

std::vector<BucketTime> bucket_times(Cluster& cluster, const Mesh& mesh, const Program& program,
                                     const LocalRanks& ranks, const Machine* machine) {
  const Executor& executor = ranks[0];
  std::vector<BucketTime> result;
  for (size_t f = 0; f < program.functions.size(); ++f) {
    const Function& function = program.functions[f];
    const auto runs =
        static_cast<double>(runs_of(function, executor.times_of(static_cast<int>(f))));
    if (runs == 0) continue;
    std::vector<Bucket> found;
    find_buckets(function, 1, found);
    find_exposed(cluster, mesh, ranks, found);
    const size_t before = result.size();
    for (const Bucket& bucket : found) {
      const Step& step = *bucket.first;
      result.push_back({function.name, name_of(step), axes_text(program, step.axes),
                        step.origin.name, step.origin.source, bucket.collectives, bucket.bytes,
                        bucket.exposed / runs, executor.collectives().hidden(step) / runs});
    }
    std::map<const Step*, BucketTime*> rows;
    for (size_t i = 0; i < found.size(); ++i) rows[found[i].first] = &result[before + i];
    if (machine != nullptr) predict(function, *machine, mesh, rows);
  }
  return result;
}

}  // namespace tessera
