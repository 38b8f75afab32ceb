// What each exchange took beside what a machine is predicted to take. Who arrives first waits for
// the others, who would have been late without any communication: what is exposed of an exchange is
// the time from the last rank's arrival until the last rank goes on, each time anew. (What the last
// one itself waits may be less: what it sends may be under way when it has all that it wants.)
#include <algorithm>
#include <limits>
#include <map>

#include "cost/function_time.h"
#include "program/axes_text.h"
#include "session/clock_sync.h"
#include "session/session_state.h"

namespace tessera {

namespace {

constexpr double kFar = std::numeric_limits<double>::infinity();

/// The first collectives of all exchanges of a function and its loops, with how many follow.
struct First {
  const Step* step;
  int members, times;
  int64_t bytes;
  double exposed = 0;  ///< of all runs
};

void find_exchanges(const Function& function, int times, std::vector<First>& found) {
  std::map<int, size_t> of_number;
  for (const Step& step : function.steps) {
    if (step.kind == StepKind::collective) {
      const auto [it, fresh] = of_number.emplace(step.number, found.size());
      if (fresh) found.push_back({&step, 0, times, 0});
      ++found[it->second].members;
      found[it->second].bytes += times * step.bytes;
    }
    for (const Function& body : step.body)
      find_exchanges(body, times * static_cast<int>(step.loop.iterations), found);
  }
}

/// Adds what the lanes of `machine` say of the function's exchanges.
void predict(const Function& function, const Machine& machine, const Mesh& mesh,
             const std::map<const Step*, ExchangeTime*>& rows) {
  const std::vector<const Step*> steps = all_steps(function);
  const FunctionTime time = time_of(function, Costs(machine, mesh));
  for (const CollectiveTime& c : time.collectives) {
    ExchangeTime& row = *rows.at(steps[static_cast<size_t>(c.step)]);
    row.predicted_exposed += c.exposed;
    row.predicted_hidden += c.hidden();
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

/// Of each exchange, all times together.
void find_exposed(Cluster& cluster, const Mesh& mesh,
                  const std::vector<std::unique_ptr<Executor>>& executors,
                  std::vector<First>& found) {
  constexpr size_t kEach = 3;  // numbers of one time
  std::vector<double> mine;
  for (const auto& executor : executors) {
    for (const First& first : found) {
      for (const Executor::Held& held : executor->held(*first.step))
        mine.insert(mine.end(), {held.start, held.arrived, held.left});
    }
  }
  if (mine.empty()) return;
  const std::vector<double> all = cluster.gather(mine), ahead = clock_offsets(cluster);
  const size_t of_rank = mine.size() / executors.size();
  const int rank = executors[0]->world().rank();
  size_t at = 0;
  for (First& first : found) {
    const std::vector<int> group = group_of(mesh, rank, first.step->axes);
    double sum = 0;
    for (size_t times = executors[0]->held(*first.step).size(); times > 0; --times, at += kEach) {
      double start = kFar, arrived = -kFar, left = -kFar;
      for (const int r : group) {
        const auto member = static_cast<size_t>(r);
        const double* held = &all[member * of_rank + at];
        start = std::min(start, held[0]);
        arrived = std::max(arrived, held[1] - ahead[member]);
        left = std::max(left, held[2] - ahead[member]);
      }
      sum += start + std::max(0.0, left - arrived);
    }
    first.exposed = sum * executors[0]->weight_of_held(*first.step);
  }
}

}  // namespace

std::vector<ExchangeTime> Session::exchanges(const Machine* machine) const {
  const Program& program = state_->program;
  const Executor& executor = *state_->executors.at(0);
  std::vector<ExchangeTime> result;
  for (size_t f = 0; f < program.functions.size(); ++f) {
    const Function& function = program.functions[f];
    const auto runs = static_cast<double>(
        function.steps.empty() ? 0 : executor.time_of(static_cast<int>(f), 0).second);
    if (runs == 0) continue;
    std::vector<First> found;
    find_exchanges(function, 1, found);
    find_exposed(state_->cluster, state_->mesh, state_->executors, found);
    const size_t before = result.size();
    for (const First& first : found) {
      const Step& step = *first.step;
      result.push_back({function.name, name_of(step), axes_text(program, step.axes),
                        step.origin.name, step.origin.source, first.members, first.bytes,
                        first.exposed / runs, executor.hidden(step) / runs});
    }
    std::map<const Step*, ExchangeTime*> rows;
    for (size_t i = 0; i < found.size(); ++i) rows[found[i].step] = &result[before + i];
    if (machine != nullptr) predict(function, *machine, state_->mesh, rows);
  }
  return result;
}

}  // namespace tessera
