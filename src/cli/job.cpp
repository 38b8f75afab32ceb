#include <algorithm>

#include "base/env.h"
#include "base/fail.h"
#include "cli/build_model.h"
#include "cli/commands.h"
#include "cli/folder_model.h"
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

bool is_file(const std::string& model) { return model.size() > 5 && model.ends_with(".toml"); }

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

/// Parses "none" or comma-separated names.
std::vector<std::string> scopes(const std::string& text) {
  std::vector<std::string> names;
  for (size_t start = 0; text != "none" && start <= text.size();) {
    const size_t end = std::min(text.find(',', start), text.size());
    if (end > start) names.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return names;
}
}  // namespace

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
  const size_t eq = text.find('=');
  TESSERA_REQUIRE(eq != std::string::npos && eq > 0, "--set '{}' is not key=value", text);
  const std::string key = text.substr(0, eq), value = text.substr(eq + 1);
  TESSERA_REQUIRE(
      key != "model.init" || job.spec->start != nullptr,
      "--init {} is for a folder with config.json; '{}' always starts with random values", value,
      job.spec->name);
  job.config.set(key, value);
}
}  // namespace

Job resolve_without_plan(const ModelFlags& args, const std::vector<ModelSpec>& models, bool tiny) {
  TESSERA_REQUIRE(
      !args.model.empty(),
      "no model is given; known: gpt, mlp, cnn, a TOML file or a folder with config.json");
  const bool from_file = is_file(args.model);
  const std::string name = from_file ? toml_model_name(args.model) : args.model;
  const bool is_known =
      std::any_of(models.begin(), models.end(), [&](const ModelSpec& m) { return m.name == name; });
  const auto folder = !is_known && is_folder_model(name) ? folder_model(name) : nullptr;
  const ModelSpec& spec =
      folder ? *folder : find_model(name, models, from_file ? args.model + ": " : "");
  Job job{&spec, default_config(spec), {}, {}, device_of(args, args.machine), {}, {}, folder};
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
    if (key == "data.path" || key == "data.held_out" || job.given.contains(key)) return false;
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

double learning_rate(const Job& job, int64_t step) {
  const Config& c = job.config;
  if (job.spec->learning_rate) {
    const double rate = job.spec->learning_rate(c, step);
    TESSERA_REQUIRE(std::isfinite(rate), "the learning_rate of model '{}' gives {} for step {}",
                    job.spec->name, rate, step + 1);
    return rate;
  }
  const Schedule schedule = {.kind = c.text("train.schedule"),
                             .lr = c.number("train.lr"),
                             .warmup = c.integer("train.warmup"),
                             .steps = c.integer("train.steps"),
                             .floor = c.number("train.floor"),
                             .start = c.number("train.start"),
                             .flat = c.integer("train.flat"),
                             .cooldown = c.number("train.cooldown")};
  return schedule.at(step);
}

namespace {
/// Parses "glob=factor, glob=factor": learning rates of parameters relative to the common one.
std::vector<Rate> rates_of(const std::string& text) {
  std::vector<Rate> rates;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    std::string item = text.substr(at, end - at);
    item.erase(0, item.find_first_not_of(' '));
    const size_t eq = item.rfind('=');
    char* stop = nullptr;
    const double factor = eq == std::string::npos ? 0 : std::strtod(&item[eq + 1], &stop);
    TESSERA_REQUIRE(stop != nullptr && stop != &item[eq + 1] && *stop == 0 && eq > 0 && factor >= 0,
                    "key 'train.rates': '{}' is not glob=factor, like '*.bias=2'", item);
    rates.push_back({item.substr(0, eq), factor});
    at = end + 1;
  }
  return rates;
}

Optimizer optimizer_of(const std::string& name, double decay) {
  if (name == "adamw") return adam({.weight_decay = decay});
  if (name == "adam") return adam({.weight_decay = decay, .decoupled = false});
  if (name == "adam_uncorrected") {
    return adam({.beta2 = 0.999, .eps = 1e-6, .weight_decay = decay, .bias_correction = false});
  }
  if (name == "adafactor") return adafactor({.weight_decay = decay});
  if (name == "lamb") return lamb({.weight_decay = decay});
  if (name == "lion") return lion({.weight_decay = decay});
  if (name == "momentum") return momentum(0.9, decay);
  if (name == "muon") return muon({.weight_decay = decay}, adam({.weight_decay = decay}));
  TESSERA_REQUIRE(name == "sgd", "unknown optimizer '{}'{}", name,
                  suggestion(name, {"adamw", "adam", "adam_uncorrected", "adafactor", "lamb",
                                    "lion", "momentum", "sgd", "muon"}));
  return sgd(decay);
}

std::vector<std::string> trainable_of(const Config& c) {
  std::vector<std::string> globs = items_of(c.text("train.trainable"));
  if (lora_of(c).rank > 0) globs.insert(globs.end(), {"*.lora_a", "*.lora_b"});
  return globs;
}

Optimizer averaged(const Config& c, const Optimizer& optimizer) {
  const double decay = c.number("train.ema");
  if (decay == 0) return optimizer;
  TESSERA_REQUIRE(
      c.text("train.parameters") == "float32",
      "train.ema={} with train.parameters={}; an average of parameters is evaluated in their "
      "place, and 16 bits cannot hold it: store them in float32",
      decay, c.text("train.parameters"));
  return with_average(optimizer, decay);
}

Optimizer optimizer_of(const Config& c) {
  const Optimizer common = optimizer_of(c.text("train.optimizer"), c.number("train.weight_decay"));
  const std::vector<Rate> rates = rates_of(c.text("train.rates"));
  return rates.empty() ? common : with_rates(common, rates);
}
/// A number of its own precision: the loss may have 16 bits.
Tensor add_learning_rate(Graph& g, bool in_float64) {
  return g.input("lr", {}, in_float64 ? DType::float64 : DType::float32);
}

void build_accumulated(const Job& job, Trainer& t, int64_t microbatches, const Optimizer& optimizer,
                       const MinimizeOptions& options) {
  const Config& c = job.config;
  const int64_t batch = c.integer("train.batch");
  TESSERA_REQUIRE(microbatches >= 1 && batch % microbatches == 0,
                  "train.batch {} is not a multiple of train.microbatches {}", batch, microbatches);
  t.lr = add_learning_rate(t.graph, c.text("train.dtype") == "float64");
  const auto build = [&] {
    t.model = build_model(job, t.graph, batch / microbatches, false);
    return t.model.to_minimize();
  };
  t.minimized =
      minimize_in_microbatches(t.graph, "batch", microbatches, build, t.lr, optimizer, options);
  t.model.inputs.clear();
  for (const Node& node : t.graph.nodes()) {
    if (node.op->name == "input" && node.out[0] != t.lr.id())
      t.model.inputs.emplace_back(&t.graph, node.out[0]);
  }
}
double first_loss_scale(const Config& c) {
  const std::string text = c.text("train.loss_scale");
  if (text == "none" || (text == "auto" && c.text("train.dtype") != "float16")) return 0;
  const double first = text == "auto" ? 65536 : c.number("train.loss_scale");
  TESSERA_REQUIRE(first > 0, "train.loss_scale {} must be positive; none is without", text);
  return first;
}

/// Throws a usage error for a rule that means stages of layers that are built one by one.
void require_layers_in_loop(const Job& job, const Graph& graph) {
  const ModelSpec& spec = *job.spec;
  if (spec.loop_key.empty() || job.config.flag(spec.loop_key)) return;
  const bool can_loop = !spec.transformer || spec.transformer(job.config).can_scan();
  const std::string layers = spec.layers_key.empty() ? "layers" : short_name(spec.layers_key);
  for (const LayoutRule& rule : job.layout.rules()) {
    const bool is_known = std::any_of(graph.values().begin(), graph.values().end(),
                                      [&](const Value& v) { return v.shape.has(rule.dim); });
    if (is_known || rule.optional || rule.automatic || rule.dim != layers) continue;
    TESSERA_REQUIRE(
        can_loop,
        "layout rule '{}': the layers of '{}' are of several kinds that take turns, so they "
        "cannot be a loop, and only a loop is divided into stages; leave the rule out",
        rule.text, spec.name);
    fail(ErrorKind::usage,
         "layout rule '{}': the layers of '{}' are built one by one and have no dim '{}'; "
         "--set {}=true makes them a loop, which a rule divides into stages",
         rule.text, spec.name, rule.dim, short_name(spec.loop_key));
  }
}
}  // namespace

std::string short_name(const std::string& key) { return key.substr(key.rfind('.') + 1); }

/// Adds what of the metrics a function does not return yet.
void add_outputs(const std::vector<Metric>& metrics, FunctionSpec& function) {
  std::set<int> known;
  for (const Tensor& t : function.outputs) known.insert(t.id());
  for (const Metric& m : metrics) {
    for (const Tensor& t : {m.value, m.weight}) {
      if (!t.empty() && known.insert(t.id()).second) function.outputs.push_back(t);
    }
  }
}

void build_trainer(const Job& job, Trainer& t, bool fetch_gradients) {
  const Config& c = job.config;
  store_parameters(c, t.graph);
  MinimizeOptions options;
  options.clip = c.number("train.clip");
  options.loss_scale.initial = first_loss_scale(c);
  options.gradient = {scopes(c.text("train.recompute")),
                      scopes(c.text("train.reshard_after_forward"))};
  options.trainable = trainable_of(c);
  const Optimizer optimizer =
      averaged(c, job.spec->optimizer ? job.spec->optimizer(c) : optimizer_of(c));
  const int64_t microbatches = c.integer("train.microbatches");
  if (microbatches == 1) {
    t.model = build_model(job, t.graph, c.integer("train.batch"), false);
    t.lr = add_learning_rate(t.graph, t.model.loss.dtype() == DType::float64);
    t.minimized = minimize(t.model.to_minimize(), t.lr, optimizer, options);
  } else {
    build_accumulated(job, t, microbatches, optimizer, options);
  }
  t.model.loss = t.minimized.loss;
  require_layers_in_loop(job, t.graph);
  require_purposes(t.graph, job.layout);
  t.functions = {{"train", {t.model.loss, t.minimized.gradient_norm}, true}};
  add_outputs(t.minimized.metrics, t.functions[0]);
  if (fetch_gradients) {
    for (const Tensor& g : t.minimized.gradients) t.functions[0].outputs.push_back(g);
  }
}

void feed_scalar(Session& session, Tensor input, double value) {
  Array array(input.dtype(), {}, {});
  if (input.dtype() == DType::float64) {
    array.data<double>()[0] = value;
  } else {
    array.data<float>()[0] = static_cast<float>(value);
  }
  session.feed(input.name(), array);
}

Evaluator::Evaluator(const Job& job, Cluster& cluster)
    : job_(job), cluster_(cluster), source_(open_data(job, true)) {
  cluster.require_same({{"the evaluation data", source_ ? source_->fingerprint() : "none"}});
  if (!source_) return;
  BatchOptions options = BatchOptions::evaluation();
  options.bounded = true;
  batcher_ = std::make_unique<Batcher>(*source_, job.config.integer("train.batch"), options);
}

Session& Evaluator::session() {
  if (session_) return *session_;
  store_parameters(job_.config, graph_);
  model_ = build_model(job_, graph_, job_.config.integer("train.batch"), true);
  FunctionSpec function{"eval", {}, false};
  means_ = model_.metrics;
  means_.insert(means_.begin(), {"loss", model_.loss, model_.weight});
  add_outputs(means_, function);
  add_outputs({{"logits", model_.logits}}, function);
  CompileOptions compile{job_.mesh,
                         job_.layout,
                         {function},
                         static_cast<uint64_t>(job_.config.integer("train.seed")),
                         threads_of(job_)};
  compile.device = job_.device;
  session_ = std::make_unique<Session>(graph_, cluster_, compile);
  return *session_;
}

namespace {
/// The same rules, each of which may match nothing: training has tensors that an evaluation lacks,
/// such as gradients, and has checked the rules.
Layout without_demands(const Layout& layout) {
  std::string text;
  for (const LayoutRule& rule : layout.rules()) {
    std::string optional = rule.text;
    if (!rule.optional) optional.insert(optional.find_last_of(":="), "?");
    text += optional + ";";
  }
  return Layout::parse(text);
}
}  // namespace

void Evaluator::prepare_for_training() {
  job_.layout = without_demands(job_.layout);
  session();
}

Evaluation Evaluator::run(Session& trained) {
  const std::vector<std::string> has = trained.program().stored_names();
  for (const std::string& name : session().program().stored_names()) {
    const std::string average = "optimizer." + name + ".ema";
    if (std::find(has.begin(), has.end(), average) != has.end()) {
      session_->assign(name, trained.fetch(average));  // state may have another layout
    } else {
      session_->copy_from(trained, name);  // same layout, so slices are equal
    }
  }
  return run();
}

/// Number of rows of the last batch whose largest logit is at their label.
int64_t Evaluator::count_hits(int64_t rows) {
  const Array logits = session_->fetch(model_.logits.name()), labels = session_->fetch("labels");
  const int64_t classes = logits.sizes.back();
  int64_t hits = 0;
  for (int64_t r = 0; r < rows; ++r) {
    int64_t best = 0;
    for (int64_t c = 1; c < classes; ++c) {
      if (logits.at(r * classes + c) > logits.at(r * classes + best)) best = c;
    }
    hits += best == static_cast<int64_t>(labels.at(r));
  }
  return hits;
}

Evaluation Evaluator::run() {
  session();
  std::vector<double> sums(means_.size()), weights(means_.size());
  int64_t hits = 0;
  bool has_labels = !model_.logits.empty() && model_.logits.shape().rank() == 2;
  has_labels = has_labels && std::any_of(model_.inputs.begin(), model_.inputs.end(),
                                         [](const Tensor& t) { return t.name() == "labels"; });
  for (int64_t s = 0; s < batcher_->steps(); ++s) {
    const int64_t rows = batcher_->feed(*session_, s);
    session_->run("eval");
    for (size_t i = 0; i < means_.size(); ++i) {
      const Metric& m = means_[i];
      const double value = session_->fetch_scalar(m.value.name());
      sums[i] += m.weight.empty() ? value * static_cast<double>(rows) : value;
      weights[i] +=
          m.weight.empty() ? static_cast<double>(rows) : session_->fetch_scalar(m.weight.name());
    }
    if (has_labels) hits += count_hits(rows);
  }
  const auto mean = [&](size_t i) { return weights[i] == 0 ? 0 : sums[i] / weights[i]; };
  Evaluation result{mean(0)};
  const double examples = static_cast<double>(source_->examples());
  if (has_labels) result.accuracy = static_cast<double>(hits) / examples;
  for (size_t i = 1; i < means_.size(); ++i) result.metrics.emplace_back(means_[i].name, mean(i));
  return result;
}

}  // namespace tessera::cli
