// `auto` in layouts: the planner's answer becomes the job's layout, and what backward makes again
// and the microbatches become keys of its configuration. Answers are kept in the cache folder.
#include "cli/planned.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/env.h"
#include "base/fail.h"
#include "tessera/build_info.h"

namespace tessera::cli {

namespace {

constexpr const char* kDefaultMachine = "h100";
constexpr const char *kRecompute = "train.recompute", *kRegather = "train.regather",
                     *kParts = "train.microbatches";

bool has_key(const Config& config, const std::string& name) {
  return std::any_of(config.keys().begin(), config.keys().end(),
                     [&](const ConfigKey& key) { return key.name == name; });
}

/// `plain` is what a key says where nobody gave it.
bool is_free(const Job& job, const char* key, const char* plain) {
  const std::string& text = job.config.text(key);
  return text == "auto" || (text == plain && !job.given.contains(key));
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

/// The ways to make values again that the job leaves open, from cheap to dear.
void add_again(const Job& job, PlanModel& model) {
  const bool recomputes = is_free(job, kRecompute, "none"),
             regathers = is_free(job, kRegather, "none");
  const std::string recompute = recomputes ? "none" : job.config.text(kRecompute),
                    regather = regathers ? "none" : job.config.text(kRegather);
  model.again = {{recompute, regather}};
  const std::vector<LayoutRule>& rules = job.layout.rules();
  const bool names_layers =
      std::any_of(rules.begin(), rules.end(), [](const LayoutRule& r) { return !r.scope.empty(); });
  constexpr int64_t kMany = 16;  // few layers share exchanges, as trips do not
  if (has_key(job.config, "model.scan") && !model.is_loop && regathers && !names_layers &&
      model.layers >= kMany)
    model.regather_of_loop = "block";
  const bool blocks = regathers && !model.is_loop && model.regather_of_loop.empty();
  if (recomputes && regather == "none") model.again.emplace_back("attention", "none");
  if (blocks && recompute == "none") model.again.insert(model.again.begin() + 1, {"none", "block"});
  if (recomputes && regather == "none") model.again.emplace_back("block", "none");
  // The first stays: what is wrong with the model itself is said where that is built.
  model.again.erase(std::remove_if(model.again.begin() + 1, model.again.end(),
                                   [&](const auto& again) { return !builds(model, again); }),
                    model.again.end());
}

}  // namespace

PlanModel model_of(const Job& job) {
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
    part.config.set(kRecompute, build.recompute);
    part.config.set(kRegather, build.regather);
    part.config.set(kParts, fmt::format("{}", build.microbatches));
    const auto trainer = std::make_shared<Trainer>();
    build_trainer(part, *trainer, false);
    return PlanStep{std::shared_ptr<const Graph>(trainer, &trainer->graph), trainer->functions};
  };
  CompileOptions compile;
  set_schedule(job, compile);
  model.overlap = compile.overlap;
  model.wide_sums = compile.wide_sums;
  model.sums_of_parts = compile.sums_of_parts;
  model.offload_state = compile.offload_state;
  const int64_t batch = job.config.integer("train.batch");
  if (!is_free(job, kParts, "1")) {
    model.microbatches = {job.config.integer(kParts)};
  } else {
    for (int64_t m = 2; m <= batch; ++m) {
      if (batch % m == 0) model.microbatches.push_back(m);
    }
  }
  add_again(job, model);
  return model;
}

PlanOptions options_of(const Arguments& args, const Job& job) {
  PlanOptions options;
  options.layout = job.layout;
  require(!args.seconds || *args.seconds > 0,
          "a search of {} s (--plan-time); it must be more than 0", args.seconds.value_or(0));
  if (args.seconds) options.seconds = *args.seconds;
  if (!args.memory.empty()) options.memory = parse_bytes("--memory", args.memory);
  return options;
}

Arrangement arrangement_of(const PricedPlan& plan, const Job& job) {
  Arrangement result{plan.layout, {}};
  for (const auto& [key, value] :
       {std::pair{kRecompute, plan.build.recompute}, std::pair{kRegather, plan.build.regather},
        std::pair{kParts, fmt::format("{}", plan.build.microbatches)}}) {
    if (job.config.text(key) != value) result.sets.push_back(fmt::format("{}={}", key, value));
  }
  return result;
}

void arrange(const Arrangement& plan, Job& job) {
  job.layout = Layout::parse(plan.layout);
  for (const std::string& set : plan.sets) {
    const size_t eq = set.find('=');
    job.config.set(set.substr(0, eq), set.substr(eq + 1));
  }
}

namespace {

/// What a plan depends on, as the name of a file; "" where nothing can be kept.
std::string cached_at(const Arguments& args, const Job& job, const Machine& machine,
                      const PlanOptions& options, size_t most) {
  if (cache_folder().empty()) return "";
  std::string key =
      fmt::format("{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|", build_info().version, machine.to_toml(),
                  job.mesh.to_string(), options.layout.to_string(), most, options.seconds,
                  options.memory.value_or(-1), args.checkpoint.empty(), args.staging, args.device);
  for (const ConfigKey& k : job.config.keys()) {
    if (!k.name.starts_with("layout.")) key += k.name + "=" + k.value + ";";
  }
  for (const char* choice : {kRecompute, kRegather, kParts})
    key += job.given.contains(choice) ? "given;" : "free;";
  return fmt::format("{}/plans/{:016x}.json", cache_folder(), std::hash<std::string>{}(key));
}

nlohmann::json to_json(const std::vector<Arrangement>& plans) {
  nlohmann::json json = nlohmann::json::array();
  for (const Arrangement& plan : plans)
    json.push_back({{"layout", plan.layout}, {"sets", plan.sets}});
  return json;
}

/// Nothing for what is no list of plans.
std::vector<Arrangement> plans_of(const nlohmann::json& json) {
  std::vector<Arrangement> plans;
  try {
    for (const nlohmann::json& plan : json)
      plans.push_back(
          {plan.at("layout").get<std::string>(), plan.at("sets").get<std::vector<std::string>>()});
  } catch (const nlohmann::json::exception&) {
    return {};
  }
  return plans;
}

std::vector<Arrangement> read_cache(const std::string& path) {
  std::ifstream file(path);
  return plans_of(nlohmann::json::parse(file, nullptr, false));
}

void write_cache(const std::string& path, const std::vector<Arrangement>& plans) {
  std::error_code ignored;  // a plan that cannot be kept is made again
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  std::ofstream(path) << to_json(plans).dump() << "\n";
}

/// The job with the microbatches that --microbatch-size makes of so many data ranks.
Job in_parts(const Job& job, const std::string& size, int64_t ranks) {
  Job parted = job;
  if (size == "auto") parted.config.set(kParts, size);
  if (size.empty() || size == "auto") return parted;
  parted.given.insert(kParts);
  const int64_t together = std::max<int64_t>(1, std::atoll(size.c_str())) * ranks,
                batch = job.config.integer("train.batch");
  parted.config.set(kParts, fmt::format("{}", batch % together == 0 ? batch / together : 1));
  return parted;
}

/// The planner's best. What lies outside its plans (chunks, threads, room to save) may need memory
/// beside them: then plans are asked for that leave so much.
std::vector<Arrangement> search(const Arguments& args, const Job& job, const Machine& machine,
                                PlanOptions options) {
  constexpr int kTries = 3;
  std::vector<Arrangement> plans;
  for (int tries = 0; tries < kTries; ++tries) {
    Plan found;
    try {
      found = tessera::plan(model_of(job), job.mesh, machine, options);
    } catch (const Error& e) {
      if (plans.empty() || e.kind() != ErrorKind::usage) throw;
      break;  // what the earlier plan lacks is said where it is to run
    }
    plans = {arrangement_of(found.best, job)};
    for (const PricedPlan& p : found.runners_up) plans.push_back(arrangement_of(p, job));
    if (args.memory.empty()) break;
    Job arranged = job;
    arrange(plans[0], arranged);
    const int64_t over = bytes_over(args, arranged);
    if (over <= 0 || over >= *options.memory) break;
    *options.memory -= over;
  }
  return plans;
}

std::vector<Arrangement> plan_here(const Arguments& args, const Job& asked, size_t most) {
  const Machine machine = machine_for_plans(args);
  PlanOptions options = options_of(args, asked);
  options.runners_up = most - 1;
  const bool in_sizes = !args.microbatch_size.empty() && args.microbatch_size != "auto";
  std::vector<Arrangement> plans;
  // How many ranks share the batch follows from the layout, and that from their microbatches.
  int64_t ranks = asked.mesh.size();
  for (int tries = 0; tries < 2; ++tries) {
    const Job job = in_parts(asked, args.microbatch_size, ranks);
    const std::string cache = cached_at(args, job, machine, options, most);
    plans = read_cache(cache);
    if (plans.empty()) {
      plans = search(args, job, machine, options);
      if (!cache.empty()) write_cache(cache, plans);
    }
    Job arranged = job;
    arrange(plans.at(0), arranged);
    if (!in_sizes || data_ranks(arranged) == ranks) break;
    ranks = data_ranks(arranged);
  }
  return plans;
}

}  // namespace

std::vector<Arrangement> planned(const Arguments& args, const Job& job, size_t most) {
  if (args.alone || launched_ranks() <= 1) return plan_here(args, job, most);
  Cluster cluster = make_cluster(job, args);
  std::string text;
  try {
    if (cluster.is_root()) text = to_json(plan_here(args, job, most)).dump();
  } catch (const Error& e) {
    cluster.fail(e.what());
    throw;
  }
  return plans_of(nlohmann::json::parse(cluster.first_text(text)));
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
  const Arrangement plan = planned(args, job, 1).at(0);
  arrange(plan, job);
  if (read_environment().rank > 0) return;
  std::fprintf(
      stderr, "layout auto: %s%s\n",
      job.layout.rules().empty() ? "(nothing split)" : job.layout.to_string().c_str(),
      plan.sets.empty() ? "" : fmt::format(" --set {}", fmt::join(plan.sets, " ")).c_str());
}

}  // namespace tessera::cli
