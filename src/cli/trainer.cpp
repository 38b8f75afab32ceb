// A job as a model that is ready to train: its optimizer, and the graph of its step.
#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "cli/build_model.h"
#include "cli/commands.h"
#include "cli/transformer_keys.h"
#include "tessera/op.h"

namespace tessera::cli {

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

/// Parses "none" or comma-separated names.
std::vector<std::string> scopes(const std::string& text) {
  return text == "none" ? std::vector<std::string>() : items_of(text);
}

/// Parses "glob=factor, glob=factor": learning rates of parameters relative to the common one.
std::vector<Rate> rates_of(const std::string& text) {
  std::vector<Rate> rates;
  for (const std::string& item : items_of(text)) {
    const size_t eq = item.rfind('=');
    char* stop = nullptr;
    const double factor = eq == std::string::npos ? 0 : std::strtod(&item[eq + 1], &stop);
    TESSERA_REQUIRE(stop != nullptr && stop != &item[eq + 1] && *stop == 0 && eq > 0 && factor >= 0,
                    "key 'train.rates': '{}' is not glob=factor, like '*.bias=2'", item);
    rates.push_back({item.substr(0, eq), factor});
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
    const Value& value = t.graph.value(node.out[0]);
    const bool is_fed = node.op->name == "input" && node.out[0] != t.lr.id() &&
                        !t.graph.constants().contains(value.name);
    if (is_fed) t.model.inputs.emplace_back(&t.graph, node.out[0]);
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
  const int64_t microbatches = microbatches_of(c);
  const bool is_strict = strict_chunks_of(c) > 0;
  options.loop.contiguous = is_strict;
  if (microbatches == 1) {
    t.model = build_model(job, t.graph, c.integer("train.batch"), false);
    t.lr = add_learning_rate(t.graph, t.model.loss.dtype() == DType::float64);
    const auto loss = [&] { return t.model.to_minimize(); };
    // A weighted loss is divided behind the sums of gradients, as with more microbatches.
    t.minimized =
        is_strict ? minimize_in_microbatches(t.graph, "batch", 1, loss, t.lr, optimizer, options)
                  : minimize(loss(), t.lr, optimizer, options);
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

void feed_examples(Session& session, const nn::Model& model, int64_t step) {
  for (const Tensor& input : model.inputs) {
    std::vector<int64_t> sizes;
    for (const Dim& d : input.shape()) sizes.push_back(d.size);
    Array array(input.dtype(), input.shape().names(), sizes);
    const bool scores = !model.logits.empty() && model.logits.shape().rank() > 0;
    const int64_t classes = scores ? model.logits.shape().dims().back().size : 2;
    const int64_t length = sizes.empty() ? 1 : sizes.back();
    for (int64_t i = 0; i < array.elements(); ++i) {
      uint64_t h = static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15ull +
                   static_cast<uint64_t>(step) * 0xD1B54A32D192ED03ull;
      h ^= h >> 29;
      h *= 0xBF58476D1CE4E5B9ull;
      h ^= h >> 32;
      if (input.dtype() == DType::int32)
        array.data<int32_t>()[i] = static_cast<int32_t>(h % static_cast<uint64_t>(classes));
      if (input.dtype() == DType::float32)
        array.data<float>()[i] = static_cast<float>(h % 1000) / 1000.0f;
      if (input.dtype() == DType::float64)
        array.data<double>()[i] = static_cast<double>(h % 1000) / 1000.0;
    }
    // Of packed windows, which have two texts.
    for (int64_t i = 0; input.name() == "segments" && i < array.elements(); ++i)
      array.data<int32_t>()[i] = static_cast<int32_t>(1 + i % length * 2 / length);
    for (int64_t i = 0; input.name() == "positions" && i < array.elements(); ++i)
      array.data<int32_t>()[i] = static_cast<int32_t>(i % length);
    session.feed(input.name(), array);
  }
}

}  // namespace tessera::cli
