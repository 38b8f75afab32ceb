#include "tessera/simulate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "api/axes_text.h"
#include "api/lowering.h"
#include "base/fail.h"
#include "plan/cost.h"

namespace tessera {

namespace {

void add_steps(const Program& program, const Function& f, const FunctionTime& time,
               Simulation& result) {
  const std::vector<const Step*> steps = all_steps(f);
  std::map<int, size_t> next;  // exchange of a step: one each trip
  for (const TimeSpan& span : time.spans) {
    const Step& step = *steps[static_cast<size_t>(span.step)];
    SimulatedStep& row = result.steps.emplace_back();
    row.name = step.origin.name;
    row.kernel = step.kernel;
    row.source = step.origin.source;
    row.begin = span.begin;
    row.seconds = span.seconds;
    row.flops = step.flops;
    row.lane = span.lane;
    if (step.kind != StepKind::collective) continue;
    row.axes = axes_text(program, step.axes);
    size_t& at = next[span.step];
    while (time.collectives[at].step != span.step) ++at;
    row.exposed = time.collectives[at].exposed;
    row.bytes = time.collectives[at++].bytes;
  }
  std::stable_sort(result.steps.begin(), result.steps.end(),
                   [](const auto& a, const auto& b) { return a.begin < b.begin; });
}

/// Daly's first-order optimum of the time between checkpoints, and the share of time that is left.
void add_failures(const SimulateOptions& how, Simulation& result) {
  if (how.failure_hours <= 0) return;
  const double mean = how.failure_hours * 3600 / static_cast<double>(result.ranks);
  result.checkpoint_every = std::sqrt(2 * how.checkpoint_seconds * mean);
  const double lost = how.checkpoint_seconds / result.checkpoint_every +
                      (result.checkpoint_every / 2 + how.restart_seconds) / mean;
  result.goodput = 1 / (1 + lost);
}

}  // namespace

Simulation simulate(const Graph& graph, const CompileOptions& options, const Machine& machine,
                    const SimulateOptions& how) {
  require(how.stragglers >= 0 && how.failure_hours >= 0 && how.checkpoint_seconds > 0 &&
              how.restart_seconds >= 0,
          "simulate: stragglers {}, failure hours {}, restart {} s are at least 0 and a checkpoint "
          "of {} s is longer than that",
          how.stragglers, how.failure_hours, how.restart_seconds, how.checkpoint_seconds);
  LowerOptions lowering = lowering_of(options, options.functions);
  lowering.workspace_bytes = workspace_on_cpu(options);
  const Program program = lower(graph, lowering);
  const Function& function = program.functions[static_cast<size_t>(program.function(how.function))];
  const FunctionTime time = time_of(function, Costs(machine, options.mesh), true);
  Simulation result;
  result.machine = machine.name;
  result.ranks = options.mesh.size();
  result.seconds = time.seconds;
  result.compute = time.compute;
  result.slowed = time.slowed;
  result.exposed = time.exposed;
  result.memory = program.persistent_bytes + program.transient_bytes;
  result.with_stragglers =
      time.seconds *
      (1 + how.stragglers * std::sqrt(2 * std::log(static_cast<double>(result.ranks))));
  for (const AxisTime& axes : time.by_axes)
    result.by_axes.push_back(
        {axes_text(program, axes.axes), axes.bytes, axes.seconds, axes.exposed});
  add_steps(program, function, time, result);
  add_failures(how, result);
  return result;
}

std::string to_trace(const Simulation& simulation) {
  nlohmann::json events = nlohmann::json::array();
  const auto thread = [&](int lane, const std::string& name) {
    events.push_back({{"ph", "M"},
                      {"pid", 0},
                      {"tid", lane},
                      {"name", "thread_name"},
                      {"args", {{"name", name}}}});
  };
  events.push_back(
      {{"ph", "M"},
       {"pid", 0},
       {"name", "process_name"},
       {"args",
        {{"name", fmt::format("each of {} ranks on {}", simulation.ranks, simulation.machine)}}}});
  thread(0, "compute");
  for (size_t lane = 0; lane < simulation.by_axes.size(); ++lane)
    thread(static_cast<int>(lane) + 1, "over " + simulation.by_axes[lane].axes);
  for (const SimulatedStep& step : simulation.steps) {
    nlohmann::json args = {{"kernel", step.kernel}, {"source", step.source}};
    if (step.lane > 0) {
      args["bytes"] = step.bytes;
      args["exposed_us"] = 1e6 * step.exposed;
    } else {
      args["flops"] = step.flops;
    }
    events.push_back({{"ph", "X"},
                      {"pid", 0},
                      {"tid", step.lane},
                      {"name", step.name},
                      {"ts", 1e6 * step.begin},
                      {"dur", 1e6 * step.seconds},
                      {"args", std::move(args)}});
  }
  return nlohmann::json({{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}).dump();
}

}  // namespace tessera
