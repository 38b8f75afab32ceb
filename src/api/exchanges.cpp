// What each exchange took beside what a machine is predicted to take. Who arrives first waits for
// the others, who would have been late without any communication: what is exposed of an exchange is
// what the rank held up least waited, each time anew.
#include <algorithm>
#include <limits>
#include <map>

#include "api/axes_text.h"
#include "api/session_state.h"
#include "plan/cost.h"

namespace tessera {

namespace {

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
      find_exchanges(body, times * static_cast<int>(step.loop.trips), found);
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
  std::vector<double> mine;
  for (const auto& executor : executors) {
    for (const First& first : found) {
      const std::vector<double> held = executor->held(*first.step);
      mine.insert(mine.end(), held.begin(), held.end());
    }
  }
  if (mine.empty()) return;
  const std::vector<double> all = cluster.gather(mine);
  const size_t each = mine.size() / executors.size();
  const int rank = executors[0]->world().rank();
  size_t at = 0;
  for (First& first : found) {
    const std::vector<int> group = group_of(mesh, rank, first.step->axes);
    for (size_t times = executors[0]->held(*first.step).size(); times > 0; --times, ++at) {
      double least = std::numeric_limits<double>::infinity();
      for (const int member : group)
        least = std::min(least, all[static_cast<size_t>(member) * each + at]);
      first.exposed += least;
    }
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
      result.push_back({function.name, step.kernel, axes_text(program, step.axes), step.origin.name,
                        step.origin.source, first.members, first.bytes, first.exposed / runs,
                        executor.hidden(step) / runs});
    }
    std::map<const Step*, ExchangeTime*> rows;
    for (size_t i = 0; i < found.size(); ++i) rows[found[i].step] = &result[before + i];
    if (machine != nullptr) predict(function, *machine, state_->mesh, rows);
  }
  return result;
}

}  // namespace tessera
