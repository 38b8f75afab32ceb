#include "tessera/simulate.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "compile/lowering.h"
#include "compile/program_variants.h"
#include "cost/function_time.h"
#include "program/axes_text.h"
#include "program/stage_ticks.h"
#include "tessera/pipeline_schedules.h"

namespace tessera {

namespace {

void add_steps(const Program& program, const Function& f, const FunctionTime& time,
               Simulation& result) {
  const std::vector<const Step*> steps = all_steps(f);
  for (const TimeSpan& span : time.spans) {
    const Step& step = *steps[static_cast<size_t>(span.step)];
    SimulatedStep& row = result.steps.emplace_back();
    row.name = step.origin.name;
    row.kernel = name_of(step);
    row.source = step.origin.source;
    row.begin = span.begin;
    row.seconds = span.seconds;
    row.flops = step.flops;
    row.lane = span.lane;
    if (step.kind != StepKind::collective) continue;
    row.axes = axes_text(program, step.axes);
    row.rule = step.origin.reason;
    const CollectiveTime& of = time.collectives[static_cast<size_t>(span.collective)];
    row.exposed = of.exposed;
    row.more = of.members - 1;
    row.bytes = of.bytes;
  }
  std::stable_sort(result.steps.begin(), result.steps.end(),
                   [](const auto& a, const auto& b) { return a.begin < b.begin; });
}

SimulatedPhase phase_of(StageWork work) {
  switch (work) {
    case StageWork::none:
      return SimulatedPhase::together;
    case StageWork::forward:
      return SimulatedPhase::forward;
    case StageWork::backward:
      return SimulatedPhase::backward;
    default:
      return SimulatedPhase::weights;
  }
}

/// Adds what each stage of a pipeline does, and what all do before, between and behind its loops.
void add_stages(const Program& program, const Function& f, const FunctionTime& time,
                Simulation& result) {
  for (const StageCount& c : count_stages(program, f))
    result.pipelines.push_back({program.axis_names[static_cast<size_t>(c.axis)], c.stages,
                                c.microbatches, c.ticks, c.busy});
  if (result.pipelines.size() != 1) return;  // one picture: of the stages of one axis
  const std::vector<const Step*> steps = all_steps(f);
  const auto add_all = [&](SimulatedPhase phase, double begin, double end) {
    for (int64_t stage = 0; stage < result.pipelines[0].stages && end > begin; ++stage)
      result.stage_ticks.push_back({stage, -1, phase, begin, end - begin});
  };
  double end = 0;
  for (size_t t = 0; t < time.ticks.size();) {
    const int loop = time.ticks[t].loop;
    double begin = time.ticks[t].begin, last = end;
    const size_t first = result.stage_ticks.size();
    for (; t < time.ticks.size() && time.ticks[t].loop == loop; ++t) {
      const TickSpan& span = time.ticks[t];
      const LoopStep& share = steps[static_cast<size_t>(span.step)]->loop;
      begin = std::min(begin, span.begin);
      last = std::max(last, span.begin + span.seconds);
      const StageWork work = share.share->work;
      result.stage_ticks.push_back(
          {span.stage,
           work == StageWork::none ? -1 : microbatch_in_tick(share, span.tick, span.stage),
           phase_of(work), span.begin, span.seconds});
    }
    add_all(first == 0 ? SimulatedPhase::update : SimulatedPhase::together, end, begin);
    end = last;
  }
  add_all(SimulatedPhase::update, end, time.seconds);
}

/// Adds the optimal checkpoint interval (Daly, first order) and the goodput: the share of time that
/// is left for training.
void add_failures(const SimulateOptions& how, Simulation& result) {
  if (how.failure_hours <= 0) return;
  const double mean = how.failure_hours * 3600 / static_cast<double>(result.ranks);
  result.checkpoint_every = std::sqrt(2 * how.checkpoint_seconds * mean);
  const double lost = how.checkpoint_seconds / result.checkpoint_every +
                      (result.checkpoint_every / 2 + how.restart_seconds) / mean;
  result.goodput = 1 / (1 + lost);
}

}  // namespace

namespace {

void check_options(const SimulateOptions& how) {
  TESSERA_REQUIRE(
      how.stragglers >= 0 && how.failure_hours >= 0 && how.checkpoint_seconds > 0 &&
          how.restart_seconds >= 0,
      "simulate: stragglers {}, failure hours {}, restart {} s and a checkpoint of {} s: none "
      "is negative, and a checkpoint takes more than 0 s",
      how.stragglers, how.failure_hours, how.restart_seconds, how.checkpoint_seconds);
}

/// Adds the cost of stragglers and failures.
void add_chances(const SimulateOptions& how, Simulation& result) {
  result.with_stragglers =
      result.seconds *
      (1 + how.stragglers * std::sqrt(2 * std::log(static_cast<double>(result.ranks))));
  add_failures(how, result);
}

}  // namespace

Simulation simulate(const Graph& graph, const CompileOptions& options, const Machine& machine,
                    const SimulateOptions& how) {
  check_options(how);
  LowerOptions lowering = lowering_of(options, options.functions);
  lowering.workspace_bytes = workspace_on(options.device, options.threads_per_rank);
  const Program program = lower_chosen(graph, lowering);
  const Function& function = program.functions[static_cast<size_t>(program.function(how.function))];
  const FunctionTime time = time_of(function, Costs(machine, options.mesh), true);
  Simulation result;
  result.machine = machine.name;
  result.ranks = options.mesh.size();
  result.seconds = time.seconds;
  result.compute = time.compute;
  result.slowed = time.slowed;
  result.exposed = time.exposed;
  result.bubble = time.bubble;
  result.memory = program.persistent_bytes + program.transient_bytes;
  for (const AxisTime& axes : time.by_axes)
    result.by_axes.push_back(
        {axes_text(program, axes.axes), axes.bytes, axes.seconds, axes.exposed});
  add_steps(program, function, time, result);
  add_stages(program, function, time, result);
  add_chances(how, result);
  return result;
}

namespace {

/// Adds the spans of microbatches, of their transfers in a lane of their own, and of what runs once
/// at the end.
void add_spans(const PipelinePlan& plan, Simulation& result) {
  std::vector<double> ends(static_cast<size_t>(plan.stages));
  const auto add = [&](int stage, SimulatedPhase phase, std::string name, double begin,
                       double seconds) {
    SimulatedStep& row = result.steps.emplace_back();
    row.name = std::move(name);
    row.stage = stage;
    row.phase = phase;
    row.lane = phase == SimulatedPhase::hand_over ? 1 : 0;
    row.begin = begin;
    row.seconds = seconds;
    return &row;
  };
  for (const StageSpan& span : plan.spans) {
    const std::string what =
        fmt::format("{} {}{}", span.is_forward ? "forward" : "backward", span.microbatch,
                    plan.chunks > 1 ? fmt::format(", chunk {}", span.chunk) : "");
    const double end = span.begin + span.seconds;
    add(span.stage, span.is_forward ? SimulatedPhase::forward : SimulatedPhase::backward, what,
        span.begin, span.seconds)
        ->kernel = "microbatch";
    ends[static_cast<size_t>(span.stage)] = std::max(ends[static_cast<size_t>(span.stage)], end);
    if (!span.hands_over) continue;
    SimulatedStep* handed =
        add(span.stage, SimulatedPhase::hand_over, "hand over " + what, end, plan.transfer);
    handed->kernel = to_string(CollectiveKind::exchange);
    handed->axes = "stage";
    handed->bytes = plan.handed;
  }
  for (int stage = 0; stage < static_cast<int>(plan.stages); ++stage)
    add(stage, SimulatedPhase::update, "reduction of gradients, update",
        ends[static_cast<size_t>(stage)], plan.once);
  std::stable_sort(result.steps.begin(), result.steps.end(),
                   [](const auto& a, const auto& b) { return a.begin < b.begin; });
}

}  // namespace

Simulation simulate_pipeline(const PlanModel& model, const Mesh& mesh, const Layout& layout,
                             const PlanBuild& build, int64_t stages, int64_t chunks,
                             const Machine& machine, const SimulateOptions& how) {
  check_options(how);
  const PipelinePlan plan = price_pipeline(model, mesh, layout, build, stages, chunks, machine);
  Simulation result;
  result.machine = machine.name;
  result.ranks = stages * mesh.size();
  result.stages = stages;
  result.chunks = chunks;
  result.schedule = build.pipeline_schedule;
  if (chunks > 1 && result.schedule == pipeline_schedules()[0].name)
    result.schedule = "interleaved";
  result.microbatches = build.microbatches;
  result.seconds = plan.stage.seconds;
  result.compute = plan.stage.compute;
  result.slowed = plan.stage.slowed;
  result.exposed = plan.stage.exposed;
  result.bubble = plan.stage.bubble;
  result.transfer = plan.transfer;
  result.handed = plan.handed;
  result.memory = plan.stage.memory();
  for (const PlanAxes& axes : plan.stage.by_axes)
    result.by_axes.push_back({axes.axes, axes.bytes, axes.seconds, axes.exposed});
  add_spans(plan, result);
  add_chances(how, result);
  return result;
}

std::string to_trace(const Simulation& simulation) {
  nlohmann::json events = nlohmann::json::array();
  const auto name = [&](int process, int thread, const char* what, const std::string& text) {
    events.push_back({{"ph", "M"},
                      {"pid", process},
                      {"tid", thread},
                      {"name", what},
                      {"args", {{"name", text}}}});
  };
  const bool is_pipeline = simulation.stages > 1;
  for (int stage = 0; stage < static_cast<int>(simulation.stages); ++stage) {
    const int64_t ranks = simulation.ranks / simulation.stages;
    name(
        stage, 0, "process_name",
        fmt::format("{}each of {} ranks on {}", is_pipeline ? fmt::format("stage {}: ", stage) : "",
                    ranks, simulation.machine));
    name(stage, 0, "thread_name", "compute");
    if (is_pipeline) name(stage, 1, "thread_name", "to the next stage");
    for (size_t lane = 0; !is_pipeline && lane < simulation.by_axes.size(); ++lane)
      name(0, static_cast<int>(lane) + 1, "thread_name", "over " + simulation.by_axes[lane].axes);
  }
  for (const SimulatedStep& step : simulation.steps) {
    nlohmann::json args = {{"kernel", step.kernel}, {"source", step.source}};
    if (step.lane > 0) {
      args["bytes"] = step.bytes;
      args["exposed_us"] = 1e6 * step.exposed;
    } else {
      args["flops"] = step.flops;
    }
    events.push_back({{"ph", "X"},
                      {"pid", step.stage},
                      {"tid", step.lane},
                      {"name", step.name},
                      {"ts", 1e6 * step.begin},
                      {"dur", 1e6 * step.seconds},
                      {"args", std::move(args)}});
  }
  return nlohmann::json({{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}).dump();
}

}  // namespace tessera
