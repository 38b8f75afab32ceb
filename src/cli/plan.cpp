// plan: the layout of least predicted step time; and `auto` in layouts.
#include "tessera/plan.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/env.h"
#include "base/fail.h"
#include "base/files.h"
#include "cli/commands.h"
#include "cli/report.h"
#include "tessera/build_info.h"

namespace tessera::cli {

namespace {

constexpr const char* kDefaultMachine = "h100";

bool has_key(const Config& config, const std::string& name) {
  return std::any_of(config.keys().begin(), config.keys().end(),
                     [&](const ConfigKey& key) { return key.name == name; });
}

/// Scopes that the model lacks are none to make again.
bool builds(const PlanModel& model, const std::pair<std::string, std::string>& again) {
  try {
    model.build({1, again.first, again.second, 1});
    return true;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::usage) throw;
    return false;
  }
}

/// A job as the planner builds it. is_free: recompute and microbatches too, where they are not
/// given.
PlanModel model_of(const Job& job, bool is_free) {
  PlanModel model;
  model.name = job.spec->name;
  const bool has_layers = has_key(job.config, "model.layers");
  model.layers = has_layers ? job.config.integer("model.layers") : 1;
  model.is_loop = has_key(job.config, "model.scan") && job.config.flag("model.scan");
  model.build = [job, has_layers](const PlanBuild& build) {
    Job part = job;
    if (has_layers) part.config.set("model.layers", fmt::format("{}", build.layers));
    if (build.looped) part.config.set("model.scan", "true");
    if (build.unrolled && has_key(job.config, "model.scan")) part.config.set("model.scan", "false");
    part.config.set("train.recompute", build.recompute);
    part.config.set("train.regather", build.regather);
    part.config.set("train.microbatches", fmt::format("{}", build.microbatches));
    const auto trainer = std::make_shared<Trainer>();
    build_trainer(part, *trainer, false);
    return PlanStep{std::shared_ptr<const Graph>(trainer, &trainer->graph), trainer->functions};
  };
  // `auto` is settled by --memory, when the layout is known; here it is free.
  const auto given = [&](const char* key, const char* plain) {
    const std::string text = job.config.text(key);
    return text == "auto" ? std::string(plain) : text;
  };
  const std::string recompute = given("train.recompute", "none"),
                    regather = given("train.regather", "none");
  Config plain = job.config;
  plain.set("train.microbatches", given("train.microbatches", "1"));
  const int64_t batch = plain.integer("train.batch"), parts = plain.integer("train.microbatches");
  model.again = {{recompute, regather}};
  model.microbatches = {parts};
  if (!is_free) return model;
  const std::vector<LayoutRule>& rules = job.layout.rules();
  const bool names_layers =
      std::any_of(rules.begin(), rules.end(), [](const LayoutRule& r) { return !r.scope.empty(); });
  constexpr int64_t kMany = 16;  // few layers share exchanges, as trips do not
  if (has_key(job.config, "model.scan") && !model.is_loop && regather == "none" && !names_layers &&
      model.layers >= kMany)
    model.regather_of_loop = "block";
  if (recompute == "none" && regather == "none") {
    for (const char* scopes : {"attention", "block"}) {
      if (scopes == std::string("block") && !model.is_loop && model.regather_of_loop.empty())
        model.again.emplace_back("none", "block");
      model.again.emplace_back(scopes, "none");
    }
    // The first stays: what is wrong with the model itself is said where that is built.
    model.again.erase(std::remove_if(model.again.begin() + 1, model.again.end(),
                                     [&](const auto& again) { return !builds(model, again); }),
                      model.again.end());
  }
  for (int64_t m = 2; parts == 1 && m <= batch; ++m) {
    if (batch % m == 0) model.microbatches.push_back(m);
  }
  return model;
}

PlanOptions options_of(const Arguments& args, const Job& job) {
  PlanOptions options;
  options.layout = job.layout;
  require(!args.seconds || *args.seconds > 0, "--time is {} s; it must be more than 0",
          args.seconds.value_or(0));
  if (args.seconds) options.seconds = *args.seconds;
  if (!args.memory.empty()) options.memory = parse_bytes("--memory", args.memory);
  return options;
}

nlohmann::json to_json(const PricedPlan& p) {
  nlohmann::json axes = nlohmann::json::array(), transfers = nlohmann::json::array();
  for (const PlanAxes& a : p.by_axes) {
    axes.push_back(
        {{"axes", a.axes}, {"bytes", a.bytes}, {"seconds", a.seconds}, {"exposed", a.exposed}});
  }
  for (const PlanTransfer& t : p.transfers) {
    transfers.push_back(
        {{"kind", t.kind}, {"tensor", t.tensor}, {"axes", t.axes}, {"bytes", t.bytes}});
  }
  return {{"mesh", p.mesh.to_string()},
          {"layout", p.layout},
          {"rules", p.rules},
          {"scoped", p.scoped},
          {"zero", p.zero},
          {"over", p.over},
          {"recompute", p.build.recompute},
          {"regather", p.build.regather},
          {"microbatches", p.build.microbatches},
          {"seconds", p.seconds},
          {"compute", p.compute},
          {"update", p.update},
          {"slowed", p.slowed},
          {"exposed", p.exposed},
          {"axes", axes},
          {"transfers", transfers},
          {"whole", p.whole},
          {"memory",
           {{"params", p.params},
            {"state", p.state},
            {"inputs", p.inputs},
            {"transient", p.transient},
            {"total", p.memory()}}}};
}

nlohmann::json to_json(const Plan& plan) {
  nlohmann::json report = {{"best", to_json(plan.best)},
                           {"bound", plan.bound},
                           {"gap", plan.gap()},
                           {"optimal", plan.optimal},
                           {"machine", plan.machine},
                           {"memory_limit", plan.memory_limit},
                           {"table_seconds", plan.table_seconds},
                           {"saved_per_gib", plan.saved_per_gib},
                           {"plain_seconds", plan.plain_seconds},
                           {"scoped", plan.scoped},
                           {"space", plan.space},
                           {"priced", plan.priced},
                           {"illegal", plan.illegal},
                           {"too_large", plan.too_large},
                           {"first_seconds", plan.first_seconds},
                           {"proof_seconds", plan.proof_seconds},
                           {"search_seconds", plan.search_seconds}};
  report["runners_up"] = nlohmann::json::array();
  for (const PricedPlan& p : plan.runners_up) report["runners_up"].push_back(to_json(p));
  report["alternatives"] = nlohmann::json::array();
  for (const DimAlternative& a : plan.alternatives) {
    report["alternatives"].push_back({{"dim", a.dim},
                                      {"now", a.now},
                                      {"instead", a.instead},
                                      {"penalty", a.penalty},
                                      {"memory", a.memory},
                                      {"fits", a.fits}});
  }
  return report;
}

nlohmann::json to_json(const PipelinePlans& pipelines, const Plan& beside) {
  nlohmann::json plans = nlohmann::json::array();
  for (const PipelinePlan& p : pipelines.plans) {
    nlohmann::json plan = to_json(p.stage);
    plan["stages"] = p.stages;
    plan["chunks"] = p.chunks;
    plan["schedule"] = p.chunks > 1 ? "interleaved 1F1B" : "1F1B";
    plan["bubble"] = p.bubble;
    plan["transfer"] = p.transfer;
    plan["handed"] = p.handed;
    plan["times_as_long"] = p.stage.seconds / beside.best.seconds;
    plans.push_back(plan);
  }
  return {{"runs", false},
          {"plans", plans},
          {"bound", pipelines.bound},
          {"space", pipelines.space},
          {"priced", pipelines.priced},
          {"least_memory", pipelines.least_memory},
          {"search_seconds", pipelines.search_seconds}};
}

/// What a plan depends on, as the name of a file; "" where nothing can be kept.
std::string cached_at(const Job& job, const Machine& machine, const PlanOptions& options,
                      size_t most) {
  if (cache_folder().empty()) return "";
  std::string key = fmt::format("{}|{}|{}|{}|{}|{}|", build_info().version, machine.to_toml(),
                                job.mesh.to_string(), options.layout.to_string(), most,
                                options.memory.value_or(-1));
  for (const ConfigKey& k : job.config.keys()) {
    if (!k.name.starts_with("layout.")) key += k.name + "=" + k.value + ";";
  }
  return fmt::format("{}/plans/{:016x}.json", cache_folder(), std::hash<std::string>{}(key));
}

std::vector<std::string> read_cache(const std::string& path) {
  std::ifstream file(path);
  const nlohmann::json stored = nlohmann::json::parse(file, nullptr, false);
  if (!stored.is_array()) return {};
  std::vector<std::string> layouts;
  for (const nlohmann::json& layout : stored) {
    if (layout.is_string()) layouts.push_back(layout.get<std::string>());
  }
  return layouts;
}

void write_cache(const std::string& path, const std::vector<std::string>& layouts) {
  std::error_code ignored;  // a plan that cannot be kept is made again
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  std::ofstream(path) << nlohmann::json(layouts).dump() << "\n";
}

void write_page(const std::string& path, const std::string& title, const std::string& page) {
  if (path.empty()) return;
  std::string text;
  for (const char c : page) {
    text += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  }
  write_text_file(
      path, "<!doctype html><meta charset=\"utf-8\"><title>" + title +
                "</title><style>body{margin:2em auto;max-width:70em}"
                "pre{font:14px/1.5 ui-monospace,monospace;white-space:pre-wrap}</style><pre>" +
                text + "</pre>\n");
}

}  // namespace

namespace {

std::vector<std::string> plan_here(const Arguments& args, const Job& job, size_t most) {
  const Machine machine = machine_for_plans(args);
  PlanOptions options = options_of(args, job);
  options.runners_up = most - 1;
  const std::string cache = cached_at(job, machine, options, most);
  if (const std::vector<std::string> known = read_cache(cache); !known.empty()) return known;
  const Plan found = tessera::plan(model_of(job, false), job.mesh, machine, options);
  std::vector<std::string> layouts = {found.best.layout};
  for (const PricedPlan& p : found.runners_up) layouts.push_back(p.layout);
  if (!cache.empty()) write_cache(cache, layouts);
  return layouts;
}

}  // namespace

std::vector<std::string> planned_layouts(const Arguments& args, const Job& job, size_t most) {
  if (args.alone || launched_ranks() <= 1) return plan_here(args, job, most);
  Cluster cluster = make_cluster(job, args);
  std::string text;  // a line a layout, each after a '>'
  try {
    if (cluster.is_root()) {
      for (const std::string& layout : plan_here(args, job, most)) text += ">" + layout + "\n";
    }
  } catch (const Error& e) {
    cluster.fail(e.what());
    throw;
  }
  text = cluster.first_text(text);
  std::vector<std::string> layouts;
  for (size_t start = 0; start < text.size();) {
    const size_t end = text.find('\n', start);
    layouts.push_back(text.substr(start + 1, end - start - 1));
    start = end + 1;
  }
  return layouts;
}

Machine machine_for_plans(const Arguments& args) {
  const std::optional<Machine> machine = find_machine(args);
  return machine ? *machine : Machine::load(kDefaultMachine);
}

bool is_automatic(const Layout& layout) {
  const std::vector<LayoutRule>& rules = layout.rules();
  return std::any_of(rules.begin(), rules.end(), [](const LayoutRule& r) { return r.automatic; });
}

void plan_layout(const Arguments& args, Job& job) {
  if (!is_automatic(job.layout)) return;
  job.layout = Layout::parse(planned_layouts(args, job, 1).at(0));
  if (read_environment().rank <= 0) {
    std::fprintf(stderr, "layout auto: %s\n",
                 job.layout.rules().empty() ? "(nothing split)" : job.layout.to_string().c_str());
  }
}

int plan(const Arguments& args, const std::vector<ModelSpec>& models) {
  require_place_for(args.json);
  require_place_for(args.out);
  require(args.devices == 0 || args.mesh.empty(),
          "--devices {} and --mesh '{}': give one of the two", args.devices, args.mesh);
  require(!args.pipeline || args.devices > 0,
          "--pipeline chooses the stages and the mesh of each; give --devices N{}",
          args.mesh.empty() ? "" : fmt::format(" instead of --mesh '{}'", args.mesh));
  require(args.microbatch_size.empty() || args.microbatch_size == "auto",
          "--microbatch-size {}: the planner chooses that; leave it out, or give "
          "--set microbatches=N",
          args.microbatch_size);
  Arguments plain = args;
  if (args.layout.empty()) plain.layout = "*:auto";
  const Job job = resolve_without_plan(plain, models);
  const Machine machine = machine_for_plans(args);
  const PlanModel model = model_of(job, true);
  const PlanOptions options = options_of(args, job);
  const Plan found = args.devices > 0 ? tessera::plan(model, args.devices, machine, options)
                                      : tessera::plan(model, job.mesh, machine, options);
  std::string page = fmt::format("{}\n{}", model.name, to_string(found));
  nlohmann::json report = to_json(found);
  const auto write = [&] {
    write_page(args.out, model.name + ": plan", page);
    write_report(args.json, report);
  };
  if (args.pipeline) {
    const PipelinePlans pipelines = plan_pipeline(model, args.devices, machine, options);
    page += to_string(pipelines, found);
    report["pipeline"] = to_json(pipelines, found);
  }
  std::fputs(page.c_str(), stdout);
  write();
  if (args.why_not.empty()) return 0;
  const Mesh mesh = args.why_not_mesh.empty() ? found.best.mesh : Mesh::parse(args.why_not_mesh);
  const PricedPlan other =
      price(model, mesh, Layout::parse(layout_rules(args.why_not)), found.best.build, machine);
  const std::string comparison = "\n" + compare(found, other);
  std::fputs(comparison.c_str(), stdout);
  page += comparison;
  report["why_not"] = to_json(other);
  write();
  return 0;
}

}  // namespace tessera::cli
