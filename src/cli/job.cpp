#include <algorithm>

#include "base/env.h"
#include "base/fail.h"
#include "cli/build_model.h"
#include "cli/commands.h"
#include "cli/transformer_keys.h"
#include "tessera/build_info.h"
#include "tessera/checkpoint.h"
#include "tessera/op.h"
#include "tessera/storage.h"

namespace tessera::cli {

namespace {

/// `from`: "run.toml: " if a file gave the name.
const ModelSpec& find_model(const std::string& name, const std::vector<ModelSpec>& models,
                            const std::string& from) {
  std::vector<std::string> names;
  for (const ModelSpec& m : models) {
    if (m.name == name) return m;
    names.push_back(m.name);
  }
  TESSERA_REQUIRE(
      name.find('/') == std::string::npos,
      "{}there is no model in '{}': a model is a built-in one (gpt, mlp, cnn), a .toml file that "
      "is there, or a folder with a config.json",
      from, name);
  fail(ErrorKind::usage, "{}unknown model '{}'{}", from, name, suggestion(name, names));
}

bool is_toml(const std::string& model) { return model.size() > 5 && model.ends_with(".toml"); }

/// Adds the rules of --zero STAGE --over AXIS or --fsdp AXIS to the layout.
void add_storage_rules(const ModelFlags& args, Job& job) {
  TESSERA_REQUIRE(args.zero != 0 || args.over.empty(), "--over '{}' needs --zero 1, 2 or 3",
                  args.over);
  TESSERA_REQUIRE(args.zero == 0 || !args.over.empty(),
                  "--zero {} needs --over AXIS, an axis of mesh '{}'", args.zero,
                  job.mesh.to_string());
  TESSERA_REQUIRE(args.zero == 0 || args.fsdp.empty(),
                  "--fsdp {} is --zero 3 --over {}; give one of the two", args.fsdp, args.fsdp);
  Graph graph;
  build_model(job, graph, job.config.integer("train.batch"), false);
  std::string given;  // without automatic rules
  for (const LayoutRule& rule : job.layout.rules()) {
    if (!rule.automatic) given += (given.empty() ? "" : ";") + rule.text;
  }
  const Layout layout = Layout::parse(given);
  const std::string more = args.fsdp.empty()
                               ? storage_rules(graph, job.mesh, layout, args.zero, args.over)
                               : storage_rules(graph, job.mesh, layout, 3, args.fsdp);
  job.layout = Layout::parse(job.layout.to_string() + ";" + more);
}

}  // namespace

std::pair<std::string, std::string> key_and_value(const std::string& setting) {
  const size_t eq = setting.find('=');
  TESSERA_REQUIRE(eq != std::string::npos && eq > 0, "--set '{}' is not key=value", setting);
  return {setting.substr(0, eq), setting.substr(eq + 1)};
}

Layout default_layout(const Job& job) {
  std::string kept;
  const Layout layout = Layout::parse(job.spec->layout);
  for (const LayoutRule& rule : layout.rules()) {
    bool all = true;
    for (const std::string& axis : rule.axes) all = all && job.mesh.find(axis) >= 0;
    if (all) kept += (kept.empty() ? "" : ";") + rule.text;
  }
  return Layout::parse(kept);
}

Job resolve(const ModelFlags& args, const std::vector<ModelSpec>& models, bool tiny) {
  Job job = resolve_without_plan(args, models, tiny);
  job.machine = machine_of(args, job);
  const bool plans_microbatches = args.microbatch_size == "auto" && is_automatic(job.layout);
  plan_layout(args, job);
  if (!plans_microbatches)
    set_microbatch_size(args.microbatch_size, job);  // needs the number of data ranks
  job.config.set("layout.rules", job.layout.to_string());
  return job;
}

std::string device_of(const JobFlags& args, const std::string& machine) {
  if (!args.device.empty()) return args.device;
  return args.alone && !machine.empty() ? Machine::load(machine).device_type : "cpu";
}

namespace {
/// Sets "key=value".
void set(const std::string& text, Job& job) {
  const auto [key, value] = key_and_value(text);
  TESSERA_REQUIRE(key != "model.init" || job.spec->start != nullptr,
                  "--init {} is for a folder with config.json and a program; '{}' always starts "
                  "with random values",
                  value, job.spec->name);
  job.config.set(key, value);
}
}  // namespace

Job resolve_without_plan(const ModelFlags& args, const std::vector<ModelSpec>& models, bool tiny) {
  TESSERA_REQUIRE(
      !args.model.empty(),
      "no model is given; known: gpt, mlp, cnn, a TOML file or a folder with config.json");
  const bool from_file = is_toml(args.model);
  const std::string name = from_file ? toml_model_name(args.model) : args.model;
  const bool is_known =
      std::any_of(models.begin(), models.end(), [&](const ModelSpec& m) { return m.name == name; });
  const auto folder = !is_known && is_folder_model(name) ? folder_model(name) : nullptr;
  const auto program = !is_known && is_program_model(name) ? program_model(name) : nullptr;
  const ModelSpec& spec = folder    ? *folder
                          : program ? *program
                                    : find_model(name, models, from_file ? args.model + ": " : "");
  Job job{&spec,  default_config(spec), {}, {}, device_of(args, args.machine), {}, {}, folder,
          program};
  if (tiny) {
    for (const auto& [key, value] : spec.tiny) job.config.set(key, value);
  }
  if (from_file) job.config.load_toml(args.model);
  job.config.set("model.name", spec.name);  // a file may name a folder
  for (const std::string& glob : args.trainable) {
    const std::string before = job.config.text("train.trainable");
    job.config.set("train.trainable", before.empty() ? glob : before + "," + glob);
  }
  for (const std::string& s : args.sets) set(s, job);
  for (const std::string& s : args.keys) set(s, job);
  if (args.threads >= 0) job.config.set("train.threads", fmt::format("{}", args.threads));
  for (const ConfigKey& key : job.config.keys()) {
    if (job.config.is_given(key.name)) job.given.insert(key.name);
  }
  job.config.require_ranges();
  if (!args.mesh.empty()) job.config.set("layout.mesh", args.mesh);
  if (job.config.text("layout.mesh").empty()) {
    job.config.set("layout.mesh", fmt::format("data:{}", std::max(1, launched_ranks())));
  }
  job.config.at_place_of("layout.mesh",
                         [&] { job.mesh = Mesh::parse(job.config.text("layout.mesh")); });
  if (!args.layout.empty()) job.config.set("layout.rules", args.layout);
  job.config.at_place_of("layout.rules", [&] {
    std::string rules = layout_rules(job.config.text("layout.rules"));
    if (rules == "auto") rules = "*:auto";
    job.layout = rules.empty() && args.layout.empty() ? default_layout(job) : Layout::parse(rules);
  });
  if (args.zero != 0 || !args.fsdp.empty() || !args.over.empty()) add_storage_rules(args, job);
  job.config.set("layout.rules", job.layout.to_string());
  return job;
}

std::optional<Config> stored_config(const Job& job, const Checkpoint& checkpoint) {
  const auto it = checkpoint.metadata.find("config");
  if (it == checkpoint.metadata.end() || it->second.empty()) return {};
  Config stored = default_config(*job.spec);
  try {
    stored.load_stored(it->second, checkpoint.path);
  } catch (const Error& e) {
    throw Error(e.kind(), fmt::format("'{}' was not written by the model '{}': {}", checkpoint.path,
                                      job.spec->name, e.what()));
  }
  return stored;
}

namespace {

/// Model keys that change neither parameters nor what is computed of them without training.
bool is_of_training(const std::string& key) {
  return key == "model.init" || key == "model.dropout" || key == "model.loss_blocks";
}

}  // namespace

void take_stored_model(Job& job, const Checkpoint& checkpoint) {
  const std::optional<Config> stored = stored_config(job, checkpoint);
  if (!stored) return;
  for (const ConfigKey& k : stored->keys()) {
    if (k.name.rfind("model.", 0) != 0 && k.name != "train.parameters") continue;
    const bool is_given = job.given.contains(k.name);
    if (is_given && is_of_training(k.name)) continue;
    TESSERA_REQUIRE(
        !is_given || same_value(job.config.text(k.name), k.value),
        "{} is given as '{}', but the checkpoint '{}' has '{}'; leave it out, or train a model "
        "with it",
        k.name, job.config.text(k.name), checkpoint.path, k.value);
    job.config.set(k.name, k.value);
  }
}

void take_stored_data(Job& job, const Checkpoint& checkpoint) {
  const std::optional<Config> stored = stored_config(job, checkpoint);
  if (!stored) return;
  const auto is_taken = [&](const std::string& key) {
    if (key == "data.path" || job.given.contains(key)) return false;
    return key.starts_with("data.") || key == "train.seed";
  };
  for (const ConfigKey& k : stored->keys()) {
    if (is_taken(k.name)) job.config.set(k.name, k.value);
  }
}

namespace {

/// What all ranks of a job must have alike: whatever decides numbers, or who waits for whom.
std::vector<Cluster::Fact> facts_of(const Job& job, const JobFlags& args) {
  std::vector<Cluster::Fact> facts;
  for (const ConfigKey& key : job.config.keys()) {
    if (key.name != "data.path") facts.emplace_back(key.name, key.value);  // compared by content
  }
  facts.emplace_back("--device", job.device);
  facts.insert(facts.end(), args.agreed.begin(), args.agreed.end());
  for (const auto& [name, value] : numeric_environment()) facts.emplace_back(name, value);
  const BuildInfo info = build_info();
  facts.emplace_back("Tessera's version", info.version);
  facts.emplace_back("the instruction set", info.isa);
  facts.emplace_back("the BLAS", info.blas);
  if (job.device != "cpu") {
    facts.emplace_back("the CUDA libraries", info.cuda);
    facts.emplace_back("NCCL", info.nccl);
    facts.emplace_back("cuDNN", info.cudnn);
  }
  return facts;
}

}  // namespace

Cluster make_cluster(int ranks, double timeout, const Invocation& how) {
  Cluster cluster = Cluster::from_environment(ranks);
  cluster.set_timeout(timeout);
  cluster.require_same(how.agreed);
  return cluster;
}

Cluster make_cluster(const Job& job, const JobFlags& args) {
  Cluster cluster = Cluster::from_environment(job.mesh.size());
  cluster.set_timeout(args.timeout);
  cluster.require_same(facts_of(job, args));
  return cluster;
}

void start_parameters(const Job& job, Session& session) {
  if (job.spec->start) job.spec->start(session, job.config);
}

int threads_of(const Job& job) { return static_cast<int>(job.config.integer("train.threads")); }

bool is_narrow(const Config& config) {
  for (const char* key : {"train.dtype", "train.parameters"}) {
    const std::string& dtype = config.text(key);
    if (dtype != "float32" && dtype != "float64") return true;
  }
  return false;
}

int64_t tokens_of_example(const Job& job) {
  return job.spec->tokens ? job.spec->tokens(job.config) : 1;
}

std::unique_ptr<DataSource> open_data(const Job& job, bool held_out) {
  TESSERA_REQUIRE(job.spec->data != nullptr, "model '{}' gives no data; set ModelSpec::data",
                  job.spec->name);
  std::unique_ptr<DataSource> source =
      of_program(job, "data", [&] { return job.spec->data(job.config, held_out); });
  TESSERA_REQUIRE(
      source || held_out,
      "the data of model '{}' gives no training data; ModelSpec::data may return nullptr for "
      "held-out data only",
      job.spec->name);
  return source;
}

}  // namespace tessera::cli
