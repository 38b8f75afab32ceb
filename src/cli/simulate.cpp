// simulate: predicts a model on a described machine.
#include "tessera/simulate.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>

#include "base/fail.h"
#include "base/files.h"
#include "cli/auto_plan.h"
#include "cli/charts.h"
#include "cli/report.h"
#include "cli/report_json.h"
#include "cli/source_text.h"
#include "cli/terminal.h"
#include "tessera/explain.h"
#include "tessera/pipeline_schedules.h"

namespace tessera::cli {

namespace {

/// --schedule: those that need no times of gradients of parameters alone.
std::vector<std::string> simulated_schedules() {
  std::vector<std::string> names;
  for (const PipelineSchedule& s : pipeline_schedules()) {
    if (!s.splits_backward) names.push_back(s.name);
  }
  return names;
}

struct SimulateFlags : ModelFlags, ReportFlags {
  std::string trace;
  int64_t stages = 0, interleave = 0;  ///< pipeline stages, chunks; 0: none, automatic
  std::string schedule;                ///< of pipeline_schedules()
  SimulateOptions how;
  void declare(FlagTable& table) {
    ModelFlags::declare(table);
    table.add({batch_flag(sets), recompute_flag(sets)});
    ReportFlags::declare(table);
    table.add(
        {{"--trace FILE", &trace, kOneProcess, "Writes the timeline to FILE, for Perfetto."},
         {"--stages", &stages, kOneProcess,
          "Number of pipeline stages that share the layers. Each has a --mesh of its own, and "
          "--set microbatches=M pass through them.",
          whole_number(1, kMostDevices)},
         {"--schedule NAME", &schedule, kOneProcess,
          fmt::format("Schedule of the stages: {}. The default is the first.",
                      fmt::join(simulated_schedules(), ", "))},
         {"--interleave", &interleave, kOneProcess,
          "Number of chunks of layers on each stage of an interleaved schedule. The default is the "
          "fastest number.",
          whole_number(1, kMostDevices)},
         {"--stragglers", &how.stragglers, kOneProcess,
          "Standard deviation of a rank's time, as a share of that time (0).", finite_number(0)},
         {"--failure-hours", &how.failure_hours, kOneProcess,
          "Mean hours until one device fails, from which goodput follows (0: never).",
          finite_number(0)},
         {"--checkpoint-seconds", &how.checkpoint_seconds, kOneProcess,
          "Seconds that writing a checkpoint takes (30).", finite_number(0)},
         {"--restart-seconds", &how.restart_seconds, kOneProcess,
          "Seconds from a failure until training continues (300).", finite_number(0)}});
  }
};

nlohmann::json to_json(const Simulation& s) {
  nlohmann::json json;
  TESSERA_JSON_FIELDS(json, s, machine, ranks, seconds, compute, slowed, exposed, bubble,
                      with_stragglers, goodput, checkpoint_every, memory, by_axes)
  if (s.stages <= 1) return json;
  TESSERA_JSON_FIELDS(json, s, stages, microbatches, transfer, handed)
  json["schedule"] = s.schedule;
  json["interleave"] = s.chunks;
  return json;
}

/// `files`: source_files() of its graph.
Simulation simulate_whole(const Job& job, const Machine& machine, const SimulateOptions& how,
                          std::map<std::string, std::string>& files) {
  Trainer t;
  build_trainer(job, t, false);
  files = source_files(t.graph);
  return tessera::simulate(t.graph, options_of(job, t, 1), machine, how);
}

const PipelineSchedule& schedule_of(const SimulateFlags& args) {
  const PipelineSchedule& schedule =
      args.schedule.empty() ? pipeline_schedules()[0] : pipeline_schedule(args.schedule);
  TESSERA_REQUIRE(!schedule.splits_backward,
                  "--schedule {0}: --stages knows no times of gradients of parameters alone; write "
                  "a rule instead: --mesh \"pipe:{1}\" --layout \"layers:pipe{2}\" --set "
                  "pipeline_schedule={0}",
                  schedule.name, args.stages,
                  takes_chunks(schedule, 1) ? "" : fmt::format("*{}", schedule.least_chunks));
  return schedule;
}

/// --interleave, or all numbers of chunks into which the layers can be divided.
std::vector<int64_t> chunks_of(const SimulateFlags& args, const PipelineSchedule& schedule,
                               const PlanModel& model, int64_t microbatches) {
  constexpr int64_t kMost = 8;
  if (args.interleave > 0) return {args.interleave};
  if (takes_chunks(schedule, 1)) return {1};
  std::vector<int64_t> all;
  for (int64_t v = 2; v <= kMost; ++v) {
    if (model.layers % (args.stages * v) == 0) all.push_back(v);
  }
  TESSERA_REQUIRE(
      !all.empty() && microbatches % args.stages == 0,
      "--schedule {} deals {} layers to {} stages in 2 to {} chunks each, all alike, and {} "
      "microbatches to these in turn; give other --stages, layers or microbatches",
      schedule.name, model.layers, args.stages, kMost, microbatches);
  return all;
}

Simulation simulate_stages(const SimulateFlags& args, const Job& job, const Machine& machine) {
  const int64_t microbatches = microbatches_of(job.config);
  TESSERA_REQUIRE(
      !job.spec->layers_key.empty(),
      "--stages {} needs a model with a key for its number of layers, and '{}' has none; for "
      "layers that are a loop write a rule instead: --mesh \"pipe:{}\" --layout \"layers:pipe\"",
      args.stages, job.spec->name, args.stages);
  const std::string layers = short_name(job.spec->layers_key);
  for (const LayoutRule& rule : job.layout.rules())
    TESSERA_REQUIRE(
        rule.dim != layers || rule.axes.empty(),
        "layout rule '{}' and --stages {} both divide the layers; leave one of the two out",
        rule.text, args.stages);
  TESSERA_REQUIRE(microbatches >= 2,
                  "--stages {} needs microbatches, and train.microbatches is {}; add --set "
                  "microbatches={} or more",
                  args.stages, microbatches, std::max<int64_t>(2, args.stages));
  PlanModel model = model_of(job);
  model.microbatches = {1};  // the cost of a layer is derived with one microbatch
  PlanBuild build{model.layers, job.config.text("train.recompute"),
                  job.config.text("train.reshard_after_forward"), microbatches};
  const PipelineSchedule& schedule = schedule_of(args);
  build.pipeline_schedule = schedule.name;
  std::optional<Simulation> best;
  for (const int64_t chunks : chunks_of(args, schedule, model, microbatches)) {
    Simulation s = simulate_pipeline(model, job.mesh, job.layout, build, args.stages, chunks,
                                     machine, args.how);
    if (!best || s.seconds < best->seconds) best = std::move(s);
  }
  return *best;
}

void print(const Job& job, const Simulation& s) {
  say("{} on {}mesh {} ({} ranks of {}), layout {}\n", job.spec->name,
      s.stages > 1 ? fmt::format("{} stages, each ", s.stages) : "", job.mesh.to_string(), s.ranks,
      s.machine, layout_text(job.layout));
  if (s.stages > 1)
    say("{}{}, {} microbatches; each sends {} to the next stage in {:.3f} ms\n", s.schedule,
        s.chunks > 1 ? fmt::format(" with {} chunks a stage", s.chunks) : "", s.microbatches,
        bytes_text(static_cast<double>(s.handed)), 1e3 * s.transfer);
  say("a step: {:.3f} ms = {:.3f} compute + {:.3f} slowed by transfers + {:.3f} exposed{}\n",
      1e3 * s.seconds, 1e3 * s.compute, 1e3 * s.slowed, 1e3 * s.exposed,
      s.bubble > 0 ? fmt::format(" + {:.3f} {}", 1e3 * s.bubble, kBubble) : "");
  for (const SimulatedAxes& a : s.by_axes)
    say("  over {:<16} {:>10}  {:9.3f} ms ({:.3f} exposed)\n", a.axes,
        bytes_text(static_cast<double>(a.bytes)), 1e3 * a.seconds, 1e3 * a.exposed);
}

std::string page_of(const Job& job, const Simulation& s, const Machine& machine,
                    const std::map<std::string, std::string>& files) {
  pages::Page page(fmt::format("{}: a simulated step", job.spec->name),
                   fmt::format("{}mesh {} ({} ranks of {}), layout {}",
                               s.stages > 1 ? fmt::format("{} stages, each ", s.stages) : "",
                               job.mesh.to_string(), s.ranks, s.machine, job.layout.to_string()));
  std::vector<std::pair<std::string, std::string>> cards = {
      {pages::with_unit(s.seconds, "s"), "a step, predicted"},
      {pages::with_unit(static_cast<double>(s.memory), "B"), "memory of a rank"}};
  if (s.with_stragglers > s.seconds)
    cards.emplace_back(pages::with_unit(s.with_stragglers, "s"), "with the slowest rank");
  if (s.checkpoint_every > 0) {
    cards.emplace_back(pages::with_unit(s.goodput, "%"), "goodput");
    cards.emplace_back(pages::with_unit(s.checkpoint_every, "s"), "between checkpoints");
  }
  page.cards(cards);
  page.section("time", "Time of a step");
  page.chart(bar_chart("where the step's time goes", "s", "a step", causes_of(s)));
  if (const pages::Json stages = stages_chart(s); !stages.is_null()) page.chart(stages);
  page.chart(time_line_chart(s.stages > 1 ? "which stage works when" : "time line of the step", s));
  page.section("communication", "Communication by axis");
  page.table("axes: over | bytes: sent by a rank [B] | seconds: takes [s] | exposed: exposed [s]",
             s.by_axes, "The step sends nothing between ranks.");
  if (job.mesh.size() > 1) page.chart(mesh_chart_on(job.mesh, &machine));
  if (s.stages == 1) {
    page.section("steps", "Steps of the Program");
    std::vector<const SimulatedStep*> all;
    for (const SimulatedStep& step : s.steps) all.push_back(&step);
    std::stable_sort(all.begin(), all.end(),
                     [](const auto* a, const auto* b) { return a->seconds > b->seconds; });
    if (all.size() > pages::Page::kMostRows) all.resize(pages::Page::kMostRows);
    nlohmann::json rows = nlohmann::json::array();
    std::set<std::string> places;
    for (const SimulatedStep* step : all) {
      places.insert(step->source);
      rows.push_back(*step);
    }
    page.code(code_around(places, files));
    page.table(
        "kernel: kernel or collective | name: tensor | source: source [@] | axes: over | "
        "begin: begins [s] | seconds: takes [s] | exposed: exposed [s]",
        rows, "The step is empty.");
  }
  return page.html();
}

int run_simulate(const SimulateFlags& args, const std::vector<ModelSpec>& models) {
  require_writable(args.json);
  require_writable(args.html);
  require_writable(args.trace);
  TESSERA_REQUIRE(args.stages > 0 || (args.schedule.empty() && args.interleave == 0),
                  "--schedule and --interleave belong to a pipeline; add --stages N");
  const std::optional<Machine> machine = find_machine(args);
  TESSERA_REQUIRE(
      machine.has_value(),
      "simulate needs --machine, a profile ({}) or a TOML file; or measure this machine with "
      "tessera calibrate",
      fmt::join(Machine::names(), ", "));
  TESSERA_REQUIRE(
      args.stages <= 1 || !is_automatic(resolve_without_plan(args, models).layout),
      "--stages {} with a layout that is left to the planner; give the layout of a stage, or "
      "leave --stages out: a plan may have stages of its own",
      args.stages);
  const Job job = resolve(args, models, false);
  std::map<std::string, std::string> files;
  const Simulation s = args.stages > 1 ? simulate_stages(args, job, *machine)
                                       : simulate_whole(job, *machine, args.how, files);
  print(job, s);
  if (args.how.stragglers > 0)
    say("with the slowest of {} ranks: {:.3f} ms\n", s.ranks, 1e3 * s.with_stragglers);
  if (args.how.failure_hours > 0)
    say("goodput {:.1f} % with a checkpoint every {:.0f} s\n", 100 * s.goodput, s.checkpoint_every);
  say("memory of a rank: {}\n", bytes_text(static_cast<double>(s.memory)));
  write_text_file(args.trace, to_trace(s));
  write_report(args.json, to_json(s));
  if (!args.html.empty()) write_text_file(args.html, page_of(job, s, *machine, files));
  return 0;
}

}  // namespace

Command simulate_command() {
  return command("simulate", "Predicts a training step on a described machine of any size.",
                 "tessera simulate gpt --machine h100 --mesh \"data:128;model:8\" --batch 1024 \\\n"
                 "    --layout \"batch:data;heads,ff,vocab:model\" --trace timeline.json",
                 Processes::first, run_simulate);
}

}  // namespace tessera::cli
