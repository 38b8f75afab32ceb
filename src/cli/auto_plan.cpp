// `auto` in layouts: the planner's answer becomes the job's layout and its keys for recompute and
// microbatches. Answers are cached in the cache folder.
#include "cli/auto_plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/env.h"
#include "base/fail.h"
#include "cli/plan_cache.h"
#include "cli/terminal.h"
#include "tessera/build_info.h"
#include "tessera/compile_options.h"
#include "tessera/pipeline_schedules.h"

namespace tessera::cli {

namespace {

constexpr const char* kDefaultMachine = "h100";
constexpr const char *kRecompute = "train.recompute", *kReshard = "train.reshard_after_forward",
                     *kMicrobatches = "train.microbatches", *kSchedule = "train.pipeline_schedule",
                     *kGradReduce = "train.grad_reduce";

/// Whether the model has the key `name` of its ModelSpec, which is "" for a model without.
bool has_key(const Job& job, const char* what, const std::string& name) {
  if (name.empty()) return false;
  const std::vector<ConfigKey>& keys = job.spec->keys;
  TESSERA_REQUIRE(
      std::any_of(keys.begin(), keys.end(), [&](const ConfigKey& key) { return key.name == name; }),
      "ModelSpec::{} of model '{}' is '{}', which is none of its keys", what, job.spec->name, name);
  return true;
}
bool has_layers(const Job& job) { return has_key(job, "layers_key", job.spec->layers_key); }
bool has_loop(const Job& job) { return has_key(job, "loop_key", job.spec->loop_key); }

/// True if the planner may choose this key. `plain`: the key's default.
bool is_free(const Job& job, const char* key, const char* plain) {
  const std::string& text = job.config.text(key);
  return text == "auto" || (text == plain && !job.given.contains(key));
}

/// False if the model lacks these scopes, so that there is nothing to recompute.
bool builds(const PlanModel& model, const std::pair<std::string, std::string>& way) {
  try {
    model.build({1, way.first, way.second, 1});
    return true;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::usage) throw;
    return false;
  }
}

/// What backward may recompute or gather again, as far as the job leaves it open; cheapest first.
void add_recompute_options(const Job& job, PlanModel& model) {
  const bool may_recompute = is_free(job, kRecompute, "none"),
             may_reshard = is_free(job, kReshard, "none");
  const std::string recompute = may_recompute ? "none" : job.config.text(kRecompute),
                    reshard_after_forward = may_reshard ? "none" : job.config.text(kReshard);
  model.recompute_options = {{recompute, reshard_after_forward}};
  const std::vector<LayoutRule>& rules = job.layout.rules();
  const bool names_layers =
      std::any_of(rules.begin(), rules.end(), [](const LayoutRule& r) { return !r.scope.empty(); });
  constexpr int64_t kMany = 16;  // few unrolled layers can share buckets, loop iterations cannot
  if (has_loop(job) && !model.is_loop && may_reshard && !names_layers && model.layers >= kMany)
    model.reshard_of_loop = "block";
  const bool blocks = may_reshard && !model.is_loop && model.reshard_of_loop.empty();
  if (may_recompute && reshard_after_forward == "none")
    model.recompute_options.emplace_back("attention", "none");
  if (blocks && recompute == "none")
    model.recompute_options.insert(model.recompute_options.begin() + 1, {"none", "block"});
  if (may_recompute && reshard_after_forward == "none")
    model.recompute_options.emplace_back(model.is_loop ? job.spec->layer_scope : "block", "none");
  // The first option always stays: errors of the model itself are reported when it is built.
  model.recompute_options.erase(
      std::remove_if(model.recompute_options.begin() + 1, model.recompute_options.end(),
                     [&](const auto& way) { return !builds(model, way); }),
      model.recompute_options.end());
}

}  // namespace

PlanModel model_of(const Job& job) {
  PlanModel model;
  model.name = job.spec->name;
  model.layers = has_layers(job) ? job.config.integer(job.spec->layers_key) : 1;
  model.is_loop = has_loop(job) && job.config.flag(job.spec->loop_key);
  if (has_loop(job) && !model.is_loop && !job.given.contains(job.spec->loop_key))
    model.loop_setting = short_name(job.spec->loop_key) + "=true";
  model.build = [job](const PlanBuild& build) {
    Job sized = job;
    if (has_layers(job)) sized.config.set(job.spec->layers_key, fmt::format("{}", build.layers));
    if (has_loop(job) && (build.looped || build.unrolled))
      sized.config.set(job.spec->loop_key, build.looped ? "true" : "false");
    sized.config.set(kRecompute, build.recompute);
    sized.config.set(kReshard, build.reshard_after_forward);
    sized.config.set(kMicrobatches, fmt::format("{}", build.microbatches));
    const auto trainer = std::make_shared<Trainer>();
    build_trainer(sized, *trainer, false);
    return PlanStep{std::shared_ptr<const Graph>(trainer, &trainer->graph), trainer->functions};
  };
  CompileOptions compile;
  set_schedule(job, compile);
  model.device = compile.device;
  model.overlap = compile.overlap;
  model.wide_grad_reduce = compile.wide_grad_reduce;
  model.reduce_each_microbatch = compile.reduce_each_microbatch;
  model.offload_state = compile.offload_state;
  model.strict_chunks = compile.strict_chunks;
  model.may_reduce_each_microbatch = is_free(job, kGradReduce, "step") && model.strict_chunks == 0;
  const int64_t batch = job.config.integer("train.batch"), tokens = tokens_of_example(job);
  if (tokens > 1) model.tokens = batch * tokens;
  if (!is_free(job, kMicrobatches, "1")) {
    model.microbatches = {microbatches_of(job.config)};
  } else {
    for (int64_t m = 2; m <= batch; ++m) {
      const bool changes_bits =
          model.strict_chunks > 0 && subtree_microbatches(batch, m, model.strict_chunks) != m;
      if (batch % m == 0 && !changes_bits) model.microbatches.push_back(m);
    }
  }
  model.schedules = {compile.pipeline_schedule};
  if (!job.given.contains(kSchedule)) {
    model.schedules.clear();
    for (const PipelineSchedule& schedule : pipeline_schedules())
      if (schedule.is_planned) model.schedules.push_back(schedule.name);
  }
  add_recompute_options(job, model);
  return model;
}

PlanOptions options_of(const ModelFlags& args, const Job& job) {
  PlanOptions options;
  options.layout = job.layout;
  TESSERA_REQUIRE(!args.plan_seconds || *args.plan_seconds > 0,
                  "--plan-time is {} s; it must be more than 0", args.plan_seconds.value_or(0));
  if (args.plan_seconds) options.seconds = *args.plan_seconds;
  if (!args.memory.empty()) options.memory = parse_bytes("--memory", args.memory);
  return options;
}

AutoPlan auto_plan_of(const PricedPlan& plan, const Job& job) {
  AutoPlan result{plan.layout, {}};
  for (const auto& [key, value] :
       {std::pair{kRecompute, plan.build.recompute},
        std::pair{kReshard, plan.build.reshard_after_forward},
        std::pair{kMicrobatches, fmt::format("{}", plan.build.microbatches)}}) {
    if (job.config.text(key) != value) result.sets.push_back(fmt::format("{}={}", key, value));
  }
  if (plan.build.reduce_each_microbatch)
    result.sets.push_back(fmt::format("{}=microbatch", kGradReduce));
  if (plan.build.looped) result.sets.push_back(job.spec->loop_key + "=true");
  const std::string& schedule = plan.build.pipeline_schedule;
  if (job.config.text(kSchedule) != schedule)
    result.sets.push_back(fmt::format("{}={}", kSchedule, schedule));
  return result;
}

PlanSpace plan_space_of(const Job& job) {
  const PlanModel model = model_of(job);
  PlanSpace space{job.mesh, {}};
  for (const auto& [recompute, reshard] : model.recompute_options) {
    space.sets[kRecompute].insert(recompute);
    space.sets[kReshard].insert(reshard);
  }
  if (!model.reshard_of_loop.empty()) space.sets[kReshard].insert(model.reshard_of_loop);
  for (const int64_t count : model.microbatches)
    space.sets[kMicrobatches].insert(fmt::format("{}", count));
  if (model.may_reduce_each_microbatch) space.sets[kGradReduce] = {"microbatch"};
  space.sets[kSchedule].insert(model.schedules.begin(), model.schedules.end());
  if (!model.loop_setting.empty()) space.sets[job.spec->loop_key].insert("true");
  return space;
}

void apply(const AutoPlan& plan, Job& job) {
  job.layout = Layout::parse(plan.layout);
  for (const std::string& set : plan.sets) {
    const auto [key, value] = key_and_value(set);
    job.config.set(key, value);
  }
}

namespace {

/// Everything that the planner's answer depends on.
std::string question_of(const ModelFlags& args, const Job& job, const Machine& machine,
                        const PlanOptions& options, size_t most) {
  std::string key =
      fmt::format("{}|{}|{}|{}|{}|{}|{}|{}|{}|", build_info().version, machine.to_toml(),
                  job.mesh.to_string(), options.layout.to_string(), most, options.seconds,
                  options.memory.value_or(-1), args.staging_bytes, job.device);
  for (const ConfigKey& k : job.config.keys()) {
    if (!k.name.starts_with("layout.")) key += k.name + "=" + k.value + ";";
  }
  for (const std::string& choice :
       {std::string(kRecompute), std::string(kReshard), std::string(kMicrobatches),
        std::string(kSchedule), std::string(kGradReduce), job.spec->loop_key})
    key += job.given.contains(choice) ? "given;" : "free;";
  return key;
}

/// The job with the number of microbatches that --microbatch-size gives for `ranks` data ranks.
Job with_microbatches(const Job& job, const std::string& size, int64_t ranks) {
  Job result = job;
  if (size == "auto") result.config.set(kMicrobatches, size);
  if (size.empty() || size == "auto") return result;
  result.given.insert(kMicrobatches);
  const int64_t at_once = std::max<int64_t>(1, std::atoll(size.c_str())) * ranks,
                batch = job.config.integer("train.batch");
  result.config.set(kMicrobatches, fmt::format("{}", batch % at_once == 0 ? batch / at_once : 1));
  return result;
}

/// The planner's best plans. Memory outside of its plans (chunks, threads, staging of saves) may
/// make them exceed --memory; then it searches again with a limit reduced by the excess.
std::vector<AutoPlan> search(const ModelFlags& args, const Job& job, const Machine& machine,
                             PlanOptions options) {
  constexpr int kTries = 3;
  std::vector<AutoPlan> plans;
  for (int tries = 0; tries < kTries; ++tries) {
    Plan found;
    try {
      found = tessera::plan(model_of(job), job.mesh, machine, options);
    } catch (const Error& e) {
      if (plans.empty() || e.kind() != ErrorKind::usage) throw;
      break;  // the memory error of the earlier plan is reported when it is run
    }
    plans = {auto_plan_of(found.best, job)};
    for (const PricedPlan& p : found.runners_up) plans.push_back(auto_plan_of(p, job));
    if (args.memory.empty()) break;
    Job chosen = job;
    apply(plans[0], chosen);
    const int64_t over = bytes_over(args, chosen);
    if (over <= 0 || over >= *options.memory) break;
    *options.memory -= over;
  }
  return plans;
}

std::vector<AutoPlan> search_or_read(const ModelFlags& args, const Job& asked, size_t most) {
  const Machine machine = machine_for_plans(args);
  PlanOptions options = options_of(args, asked);
  options.runners_up = most - 1;
  const bool in_sizes = !args.microbatch_size.empty() && args.microbatch_size != "auto";
  std::vector<AutoPlan> plans;
  // The number of data ranks depends on the layout, which depends on the number of microbatches.
  int64_t ranks = asked.mesh.size();
  for (int tries = 0; tries < 2; ++tries) {
    const Job job = with_microbatches(asked, args.microbatch_size, ranks);
    const PlanCache cache(cache_folder(), question_of(args, job, machine, options, most));
    plans = cache.read(most, [&, space = std::optional<PlanSpace>()](const AutoPlan& plan) mutable {
      if (!space) space = plan_space_of(job);
      require_in(*space, plan);
    });
    if (plans.empty()) {
      plans = search(args, job, machine, options);
      cache.write(plans);
    }
    Job chosen = job;
    apply(plans.at(0), chosen);
    if (!in_sizes || data_ranks(chosen) == ranks) break;
    ranks = data_ranks(chosen);
  }
  return plans;
}

}  // namespace

std::vector<AutoPlan> auto_plans(const ModelFlags& args, const Job& job, size_t most) {
  if (args.alone || launched_ranks() <= 1) return search_or_read(args, job, most);
  Cluster cluster = make_cluster(job, args);
  std::string text;
  try {
    if (cluster.is_root()) text = plans_text(search_or_read(args, job, most));
  } catch (const Error& e) {
    cluster.fail(e.what());
    throw;
  }
  return parse_plans(cluster.first_text(text));
}

Machine machine_for_plans(const MachineFlag& args) {
  const std::optional<Machine> machine = find_machine(args);
  return machine ? *machine : Machine::load(kDefaultMachine);
}

bool is_automatic(const Layout& layout) {
  const std::vector<LayoutRule>& rules = layout.rules();
  return std::any_of(rules.begin(), rules.end(), [](const LayoutRule& r) { return r.automatic; });
}

void plan_layout(const ModelFlags& args, Job& job) {
  if (!is_automatic(job.layout)) return;
  const AutoPlan plan = auto_plans(args, job, 1).at(0);
  apply(plan, job);
  if (read_environment().rank > 0) return;
  if (!find_machine(args))
    say_to(stderr,
           "layout auto: planned for machine {}, as this one has no profile; measure it with "
           "`tessera calibrate --mesh \"{}\"`, or name another with --machine\n",
           kDefaultMachine, job.mesh.to_string());
  say_to(stderr, "layout auto: {}{}\n",
         job.layout.rules().empty() ? "(nothing split)" : job.layout.to_string(),
         plan.sets.empty() ? "" : fmt::format(" --set {}", fmt::join(plan.sets, " ")));
}

}  // namespace tessera::cli
