// plan: finds the layout of least predicted step time and reports it as text, JSON and a page.
#include <set>

#include "base/fail.h"
#include "base/files.h"
#include "cli/auto_plan.h"
#include "cli/command_pages.h"
#include "cli/report.h"
#include "cli/report_json.h"
#include "cli/run_summary.h"
#include "cli/terminal.h"

namespace tessera::cli {

namespace {

struct PlanFlags : ModelFlags, ReportFlags {
  int64_t devices = 0;                ///< ranks of the meshes; 0: that of --mesh
  std::string why_not, why_not_mesh;  ///< a layout to compare, and its mesh if it differs
  bool more = false;                  ///< layouts of single tensors and break-even bandwidths
  void declare(FlagTable& table) {
    ModelFlags::declare(table);
    table.add({{"--devices N", &devices, kOneProcess,
                "Searches all meshes of N devices with up to three axes, instead of --mesh.",
                whole_number(1, kMostDevices)},
               {"--time", &plan_seconds, kOneProcess, "The same as --plan-time."},
               {"--why-not RULES", &why_not, kOneProcess,
                "Layout that is priced beside the best plan, with the microbatches that suit it "
                "best."},
               {"--why-not-mesh AXES", &why_not_mesh, kOneProcess,
                "Mesh of the --why-not layout. The default is the plan's."},
               {"--more", &more, kOneProcess,
                "Also examines the layouts of single tensors, and the bandwidths at which other "
                "plans win. That takes up to as long again."},
               batch_flag(sets)});
    ReportFlags::declare(table);
  }
};

nlohmann::json to_json(const PricedPlan& p) {
  nlohmann::json json;
  TESSERA_JSON_FIELDS(json, p, layout, rules, scoped, zero, over, settings, seconds, compute,
                      update, slowed, exposed, bubble, transfers, whole)
  TESSERA_JSON_FIELDS(json, p.build, recompute, reshard_after_forward, microbatches)
  TESSERA_JSON_FIELDS(json["memory"], p, params, state, inputs, transient)
  json["memory"]["total"] = p.memory();
  json["mesh"] = p.mesh.to_string();
  json["axes"] = p.by_axes;
  return json;
}

nlohmann::json to_json(const std::vector<PricedPlan>& plans) {
  nlohmann::json list = nlohmann::json::array();
  for (const PricedPlan& p : plans) list.push_back(to_json(p));
  return list;
}

nlohmann::json to_json(const Plan& plan) {
  nlohmann::json report = {
      {"best", to_json(plan.best)},
      {"gap", plan.gap()},
      {"tensors", {{"mesh", plan.tensors.mesh.to_string()}, {"proof", plan.tensors.is_proof()}}},
      {"runners_up", to_json(plan.runners_up)},
      {"usual", to_json(plan.usual)}};
  TESSERA_JSON_FIELDS(report, plan, bound, optimal, machine, memory_limit, reserve, flops, tokens,
                      table_seconds, saved_per_gib, plain_seconds, scoped, space, priced, illegal,
                      too_large, first_seconds, proof_seconds, search_seconds, alternatives)
  TESSERA_JSON_FIELDS(report["tensors"], plan.tensors, tensors, ops, left_out, planned, least,
                      bound, floor, rules, before, simulated)
  return report;
}

nlohmann::json to_json(const BreakEvenSide& side) {
  return {{"bandwidth", side.bandwidth > 0 ? nlohmann::json(side.bandwidth) : nlohmann::json()},
          {"instead", side.instead ? to_json(*side.instead) : nlohmann::json()},
          {"shown", side.shown}};
}

nlohmann::json to_json(const std::vector<BreakEven>& links) {
  nlohmann::json list = nlohmann::json::array();
  for (const BreakEven& link : links)
    list.push_back({{"link", link.link},
                    {"axes", link.axes},
                    {"bandwidth", link.bandwidth},
                    {"below", to_json(link.below)},
                    {"above", to_json(link.above)}});
  return list;
}

constexpr double kBreakEvens = 0.3;  ///< minimum share of the search time for break-even bandwidths

/// The answer as text, JSON and a page, printed and written part by part as it is known.
class Answer {
 public:
  Answer(const PlanFlags& args, const std::string& model) : args_(args) {
    findings.model = model;
    findings.job =
        fmt::format("{} train {} --data PATH", shell_word(args.program), shell_word(args.model));
    if (!args.sets.empty()) findings.job += " --set";
    for (const std::string& set : args.sets) findings.job += " " + shell_word(set);
    say("{}\n", model);
  }
  /// key: name of the section in the report; "": the report itself.
  void add(const char* key, const std::string& text, nlohmann::json section) {
    (*key == 0 ? report_ : report_[key]) = std::move(section);
    say("{}", text);
    std::fflush(stdout);
    if (!args_.html.empty()) write_text_file(args_.html, plan_page(findings));
    write_report(args_.json, report_);
  }

  PlanFindings findings;

 private:
  const PlanFlags& args_;
  nlohmann::json report_;
};

constexpr size_t kMostPoints = 500;  ///< plans of a page; text and JSON have the best few

template <class T>
void shorten(std::vector<T>& plans, size_t most) {
  if (plans.size() > most) plans.erase(plans.begin() + static_cast<long>(most), plans.end());
}

/// Lowers the best plan again: where its tensors lie, and its step as it was priced.
void look_closer(const PlanModel& model, const Machine& machine, PlanFindings& findings) {
  const PricedPlan& best = findings.plan.best;
  PlanBuild build = best.build;
  build.layers = model.layers;
  const PlanStep step = model.build(build);
  CompileOptions options = model.options(best.mesh, Layout::parse(best.layout), step.functions);
  options.threads_per_rank = 1;
  options.pipeline_schedule = build.pipeline_schedule;
  options.machine = std::make_shared<const Machine>(machine);
  findings.placement = placement(*step.graph, options);
  findings.step = simulate(*step.graph, options, machine);
}

/// True if `a` is the better one of two prices of a layout: it fits, or is faster, or is smaller.
bool is_better(const PricedPlan& a, const PricedPlan& b, int64_t limit) {
  const bool fits = limit <= 0 || a.memory() <= limit, other = limit <= 0 || b.memory() <= limit;
  if (fits != other) return fits;
  return fits ? a.seconds < b.seconds : a.memory() < b.memory();
}

/// A layout with the microbatches, and the schedule of its stages, that suit it best, as it would
/// run. A layout that only layers in a loop can have is priced with those.
PricedPlan priced(const PlanModel& model, const Mesh& mesh, const Layout& layout,
                  const PlanBuild& like, const Machine& machine, int64_t limit) {
  std::optional<PricedPlan> best;
  std::optional<Error> first;
  PlanBuild build = like;
  const auto look = [&] {
    try {
      PricedPlan found = price(model, mesh, layout, build, machine);
      if (!best || is_better(found, *best, limit)) best = std::move(found);
    } catch (const Error& e) {
      if (!first) first = e;
    }
  };
  for (const bool looped : {false, true}) {
    if (looped && (best || model.loop_setting.empty())) break;
    build.looped = looped;
    for (const int64_t microbatches : model.microbatches) {
      build.microbatches = microbatches;
      for (const std::string& schedule : model.schedules) {
        build.pipeline_schedule = schedule;
        for (const bool each : {false, true}) {
          if (each && (!model.may_reduce_each_microbatch || microbatches == 1)) break;
          build.reduce_each_microbatch = each;
          look();
        }
        if (!looped && !model.is_loop) break;  // no stages
      }
    }
  }
  if (!best) throw *first;
  build = best->build;
  return price(model, mesh, layout, build, machine, true);
}

/// Throws a usage error if rules name what the model or the mesh lacks, before a long search.
/// `mesh` may be empty: it is that of the plan to be found.
void require_names(const PlanModel& model, const Layout& rules, const std::string& mesh,
                   const Machine& machine) {
  std::set<std::string> axes;
  for (const LayoutRule& rule : rules.rules()) axes.insert(rule.axes.begin(), rule.axes.end());
  if (!mesh.empty()) {
    const std::vector<std::string> names = Mesh::parse(mesh).names();
    axes = {names.begin(), names.end()};
  }
  std::string one_rank;
  for (const std::string& axis : axes)
    one_rank += fmt::format("{}{}:1", one_rank.empty() ? "" : ";", axis);
  if (one_rank.empty()) return;
  std::optional<Error> first;
  for (const bool looped : {false, true}) {  // in a loop, layers have a dim
    if (looped && model.loop_setting.empty()) break;
    PlanBuild build;
    build.looped = looped;
    try {
      price(model, Mesh::parse(one_rank), rules, build, machine);
      return;
    } catch (const Error& e) {
      if (!first) first = e;
    }
  }
  throw *first;
}

/// The job with the rules of --layout or a file, which all plans keep, but without the model's
/// default rules.
Job job_to_plan(const PlanFlags& args, const std::vector<ModelSpec>& models) {
  ModelFlags plain = args;
  if (args.devices > 0) plain.mesh = fmt::format("data:{}", args.devices);  // overrides the file
  if (!find_machine(args)) plain.machine = machine_for_plans(args).name;
  Job job = resolve_without_plan(plain, models);
  if (!args.layout.empty() || job.given.contains("layout.rules")) return job;
  plain.layout = "*:auto";
  return resolve_without_plan(plain, models);
}

int run_plan(const PlanFlags& args, const std::vector<ModelSpec>& models) {
  require_writable(args.json);
  require_writable(args.html);
  TESSERA_REQUIRE(args.devices == 0 || args.mesh.empty(),
                  "--devices {} and --mesh '{}': give one of the two", args.devices, args.mesh);
  TESSERA_REQUIRE(args.microbatch_size.empty() || args.microbatch_size == "auto",
                  "--microbatch-size {}: the planner chooses that; leave it out, or give "
                  "--set microbatches=N",
                  args.microbatch_size);
  TESSERA_REQUIRE(args.why_not_mesh.empty() || !args.why_not.empty(),
                  "--why-not-mesh '{}' is the mesh of a --why-not layout; give that too",
                  args.why_not_mesh);
  const Layout beside = Layout::parse(layout_rules(args.why_not));
  for (const LayoutRule& rule : beside.rules())
    TESSERA_REQUIRE(!rule.automatic,
                    "--why-not '{}' is priced as it stands, and '{}' leaves it open", args.why_not,
                    rule.text);
  const Job job = job_to_plan(args, models);
  const Machine machine = machine_for_plans(args);
  const PlanModel model = model_of(job);
  PlanOptions options = options_of(args, job);
  options.each_tensor = args.more;
  if (!args.why_not.empty()) {
    const std::string given = args.devices > 0 ? "" : job.mesh.to_string();
    require_names(model, beside, args.why_not_mesh.empty() ? given : args.why_not_mesh, machine);
  }
  const size_t runners_up = options.runners_up;
  if (!args.html.empty()) options.runners_up = kMostPoints;
  Plan found = args.devices > 0 ? tessera::plan(model, args.devices, machine, options)
                                : tessera::plan(model, job.mesh, machine, options);
  Answer answer(args, model.name);
  answer.findings.plan = found;
  answer.findings.machine = machine;
  shorten(found.runners_up, runners_up);
  if (!args.html.empty()) look_closer(model, machine, answer.findings);
  answer.add("", to_string(found), to_json(found));
  if (!args.why_not.empty()) {
    const Mesh mesh = args.why_not_mesh.empty() ? found.best.mesh : Mesh::parse(args.why_not_mesh);
    const PricedPlan other =
        priced(model, mesh, beside, found.best.build, machine, found.memory_limit);
    answer.findings.other = other;
    answer.findings.why_not = compare(found, other);
    answer.add("why_not", "\n" + answer.findings.why_not, to_json(other));
  }
  if (!args.more) return 0;
  const double seconds =
      std::max(kBreakEvens * options.seconds, options.seconds - found.search_seconds);
  const std::vector<BreakEven> links =
      args.devices > 0 ? break_even(model, args.devices, machine, options, found, seconds)
                       : break_even(model, job.mesh, machine, options, found, seconds);
  answer.findings.links = links;
  answer.add("break_even", to_string(links), to_json(links));
  return 0;
}

}  // namespace

Command plan_command() {
  return command(
      "plan", "Finds the layout, storage, recompute and microbatches of least predicted step time.",
      "tessera plan gpt --devices 64 --machine h100 --batch 512 --set layers=24 d_model=2048 "
      "heads=16 ff=8192 length=2048\n"
      "  tessera plan gpt --mesh \"data:4;model:8\" --layout \"batch:data;*:auto\" --why-not "
      "\"batch:data;length:model\"",
      Processes::first, run_plan);
}

}  // namespace tessera::cli
