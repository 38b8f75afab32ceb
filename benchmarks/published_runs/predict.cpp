// From the times of blocks to a step: microbatches through stages or sharded layers, data-parallel
// communication, and the update.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/fail.h"
#include "benchmarks/published_runs/runs.h"
#include "cost/function_time.h"
#include "cost/pipeline_simulator.h"
#include "cost/stream_simulator.h"

namespace tessera::runs {

namespace {

constexpr double kNetworkShare = 0.9;    ///< of an adapter's rate, sustained
constexpr double kUpdateBytes = 38;      ///< per parameter: read and written by Adam and clipping
constexpr double kPersistentBytes = 18;  ///< per parameter: weights, gradients, state (2 + 4 + 12)
constexpr double kReserved = 4e9;        ///< context, communication buffers, fragmentation
constexpr double kImbalance = 0.008;     ///< relative standard deviation of a device's step

/// The expected slowest of n devices, relative to the mean.
double slowest(double n) { return 1 + kImbalance * std::sqrt(2 * std::log(std::max(1.0, n))); }

enum Axis { kStage, kData, kContext, kModel };

Mesh mesh_of(const Run& r) {
  return Mesh::parse(fmt::format("stage:{};data:{};context:{};model:{}", r.pp, r.dp, r.cp, r.tp));
}

/// Of an element of a parameter that is gathered.
double gathered_bytes(const Run& run, const Framework& framework) {
  const Precision p = precision_of(run.dtype);
  return framework.float8_gather && p.reads > 0 && p.tensorwise ? p.bytes : 2;
}

/// The machine, if gathers over hosts use only some of a host's adapters.
Machine gathering(Machine machine, const Framework& framework) {
  if (framework.adapters > 0)
    machine.links.back().bandwidth *=
        framework.adapters / static_cast<double>(machine.links.front().devices);
  return machine;
}

struct Step {
  const Run& run;
  const Framework& framework;
  const Machine& machine;
  const Costs& costs;
  const ModelTimes& model;
  int64_t microbatches;
  Prediction result = {};
  double held = 1;  ///< microbatches whose activations the first stage holds

  /// Over the ranks that have the same parameters, which gather them and reduce their gradients:
  /// those with other data, or another part of the context, and the same experts.
  double over_data(CollectiveKind kind, double bytes_per_param, double params,
                   double expert_params = 0) const {
    double seconds =
        costs.collective(kind, bytes_per_param * (params - expert_params), {kData, kContext});
    if (expert_params > 0) {
      const Mesh mesh = Mesh::parse(
          fmt::format("stage:{};same:{};expert:{}", run.pp, run.gpus / run.pp / run.ep, run.ep));
      seconds += Costs(machine, mesh).collective(kind, bytes_per_param * expert_params, {1});
    }
    return seconds;
  }

  double layers_on_stage() const {
    return std::ceil(static_cast<double>(run.layers) / static_cast<double>(run.pp));
  }

  /// Layers per stage differ by at most one. The first and the last stage also have an embedding
  /// table, so the middle stages get the extra layers. The chunks of a stage likewise.
  int64_t layers_of_chunk(int64_t chunk) const {
    const int64_t stage = chunk % run.pp, part = chunk / run.pp;
    const int64_t more = run.layers % run.pp, first = (run.pp - more + 1) / 2;
    const int64_t own = run.layers / run.pp + (stage >= first && stage < first + more ? 1 : 0);
    // The first stage has one layer less in its first chunk, other stages in their last.
    const int64_t place = stage == 0 ? run.interleave - 1 - part : part;
    return own / run.interleave + (place < own % run.interleave ? 1 : 0);
  }

  double params_on_device() const {
    const double ends = model.head.params + model.embedding.params;
    const double stage = layers_on_stage() * model.layer.params;
    return run.pp == 1 ? stage + ends : stage + std::max(model.head.params, model.embedding.params);
  }

  double expert_params_on_device() const { return layers_on_stage() * model.layer.expert_params; }

  double shards() const {
    return framework.sharded || framework.zero > 0 ? static_cast<double>(run.dp * run.cp) : 1;
  }

  /// Elements whose optimizer state a device has.
  double params_updated() const {
    const double experts = expert_params_on_device();
    const double same = static_cast<double>(run.gpus / run.pp / run.ep);
    return (params_on_device() - experts) / shards() + experts / (shards() > 1 ? same : 1);
  }

  void update() {
    result.update = machine.memory_seconds(kUpdateBytes * params_updated());
    result.seconds += result.update;
  }

  void sharded();
  void staged();
  double exposed_of_data(double reduced, double gathered) const;
  void reduce_gradients();
  void account();
};

/// FSDP: a layer is gathered while the one before it computes; its gradient is reduced while the
/// next one computes.
void Step::sharded() {
  StreamSimulator lanes(machine.overlap);
  // Gathered parameters are copied to their places, gradients into the reduction's buffer.
  const auto copies = [&](const BlockTimes& p, double bytes) {
    lanes.compute(machine.memory_seconds(2 * bytes * p.params));
  };
  const double bytes = gathered_bytes(run, framework);
  const auto gather = [&](const BlockTimes& p) {
    return lanes.start(over_data(CollectiveKind::all_gather, bytes, p.params, p.expert_params), 1);
  };
  const auto reduce = [&](const BlockTimes& p) {
    lanes.start(
        over_data(CollectiveKind::reduce_scatter, framework.grad_bytes, p.params, p.expert_params),
        1);
  };
  const int64_t layers = run.layers;
  for (int64_t m = 0; m < microbatches; ++m) {
    lanes.wait(gather(model.embedding));
    lanes.compute(model.embedding.forward);
    int next = gather(model.layer);
    for (int64_t l = 0; l < layers; ++l) {
      const int mine = next;
      if (l + 1 < layers) next = gather(model.layer);
      lanes.wait(mine);
      copies(model.layer, bytes);
      lanes.compute(model.layer.forward);
    }
    lanes.wait(gather(model.head));
    lanes.compute(model.head.forward + model.head.backward);
    reduce(model.head);
    if (!framework.keeps) next = gather(model.layer);
    for (int64_t l = 0; l < layers; ++l) {
      const int mine = next, again = framework.releases ? gather(model.layer) : mine;
      if (!framework.keeps && l + 1 < layers) next = gather(model.layer);
      lanes.wait(mine);
      if (!framework.keeps) copies(model.layer, bytes);
      const double first = framework.releases ? model.layer.forward : 0;  // computed again
      lanes.compute(first);
      lanes.wait(again);
      lanes.compute(model.layer.backward - first);
      copies(model.layer, framework.grad_bytes);
      reduce(model.layer);
    }
    lanes.compute(model.embedding.backward);
    reduce(model.embedding);
    lanes.wait_all();
  }
  result.compute = lanes.computed();
  result.data = lanes.now() - lanes.computed();
  result.seconds = lanes.now();
}

void Step::staged() {
  Pipeline pipeline;
  pipeline.stages = static_cast<int>(run.pp);
  std::vector<int64_t> layers;
  for (int64_t c = 0; c < run.pp * run.interleave; ++c) layers.push_back(layers_of_chunk(c));
  const auto time_of = [](const BlockTimes& block) {
    return ChunkTime{block.forward, block.backward};
  };
  pipeline.chunks = assign_virtual_stages(layers, time_of(model.layer), time_of(model.embedding),
                                          time_of(model.head));
  // Microbatches run in groups of as many as there are stages; the last group may be incomplete.
  const int64_t rest = run.interleave > 1 ? microbatches % run.pp : 0;
  const int64_t missing = rest > 0 ? run.pp - rest : 0;
  pipeline.microbatches = microbatches + missing;
  const double bytes = 2.0 * static_cast<double>(result.micro_batch * run.seq * run.hidden) /
                       static_cast<double>(run.cp);
  if (run.pp > 1) pipeline.transfer = hand_over(costs, bytes, {kStage}, {kModel});
  pipeline.blocking = !framework.overlaps;
  PipelineTime time = simulate(pipeline);
  double busy = *std::max_element(time.busy.begin(), time.busy.end());
  const double unused =
      busy * static_cast<double>(missing) / static_cast<double>(pipeline.microbatches);
  busy -= unused;
  time.seconds -= unused;
  const double tensor = layers_on_stage() * static_cast<double>(microbatches) *
                        (model.layer.transfer_forward + model.layer.transfer_backward);
  result.tensor = tensor;
  result.compute = busy - tensor;
  result.bubble = time.seconds - busy;
  result.seconds = time.seconds;
  held = microbatches_kept(pipeline, 0);
}

/// Gradients are reduced, and parameters gathered, a layer at a time: behind the backward of the
/// last microbatch, and behind the forward of the next step's first. The chunks of an interleaved
/// stage are done one after the other, with as many microbatches as stages between them.
double Step::exposed_of_data(double reduced, double gathered) const {
  const double layers = layers_on_stage(),
               turns = run.interleave > 1 ? static_cast<double>(run.pp) : 1;
  StreamSimulator lanes(machine.overlap);
  for (double l = 0; l < layers; ++l) {
    lanes.compute(turns * model.layer.backward);
    lanes.start(reduced / layers, 1);
  }
  lanes.wait_all();
  std::vector<int> gathers;
  for (double l = 0; l < layers; ++l) gathers.push_back(lanes.start(gathered / layers, 1));
  for (const int gather : gathers) {
    lanes.wait(gather);
    lanes.compute(turns * model.layer.forward);
  }
  return lanes.now() - lanes.computed();
}

void Step::reduce_gradients() {
  if (run.dp * run.cp == 1) return;
  const double params = params_on_device(), experts = expert_params_on_device();
  const auto over = [&](CollectiveKind kind, double bytes) {
    return over_data(kind, bytes, params, experts);
  };
  double reduced = 0, gathered = 0;
  if (framework.zero > 0) {
    reduced = over(CollectiveKind::reduce_scatter, framework.grad_bytes);
    gathered = over(CollectiveKind::all_gather, gathered_bytes(run, framework));
  } else {
    reduced = over(CollectiveKind::all_reduce, framework.grad_bytes);
  }
  result.data = framework.overlaps ? exposed_of_data(reduced, gathered) : reduced + gathered;
  result.seconds += result.data;
}

void Step::account() {
  const double params = params_on_device();
  double fixed = kPersistentBytes * params;
  if (framework.sharded) {
    const double unit = std::max(model.layer.params, model.head.params);
    fixed = kPersistentBytes * params / shards() + (framework.keeps ? 2 * params : 0) + 8 * unit;
  } else if (framework.zero > 0) {
    fixed = 6 * params + 12 * params_updated();
  }
  result.memory = fixed + held * layers_on_stage() * model.layer.kept + model.head.kept + kReserved;
  result.fits = result.memory <= static_cast<double>(machine.memory);
}

Prediction predict_with(const Run& run, const Framework& framework, const Machine& machine,
                        const ModelTimes& model, int64_t micro_batch) {
  const Costs costs(gathering(machine, framework), mesh_of(run));
  const int64_t microbatches = run.global_batch / run.dp / micro_batch;
  Step step{run, framework, machine, costs, model, microbatches, {}, 1};
  step.result.micro_batch = micro_batch;
  if (framework.sharded && run.pp == 1) {
    step.sharded();
  } else {
    step.staged();
    step.reduce_gradients();
  }
  step.update();
  step.result.seconds *= slowest(static_cast<double>(run.gpus));
  step.account();
  return step.result;
}

}  // namespace

Machine machine_of(const Run& run) {
  const std::string kind = lower_case(run.gpu_kind);
  const auto has = [&](const char* word) { return kind.find(word) != std::string::npos; };
  std::string name;
  if (has("a100")) name = has("40") ? "a100-40gb" : "a100-80gb";
  if (has("h100")) name = has("500w") ? "h100-500w" : "h100";
  for (const char* known : {"h200", "b200", "gb200", "b300", "gb300"}) {
    if (has(known)) name = known;
  }
  TESSERA_REQUIRE(
      !name.empty(),
      "no machine profile for gpu_kind '{}'; known are a100, h100, h200, b200, gb200, b300 and "
      "gb300; give one with --machine",
      run.gpu_kind);
  Machine machine = Machine::load(name);
  const std::string source = lower_case(run.source);
  for (const char* unit : {"gbps", " gb/s per node"}) {
    const size_t at = source.find(unit);
    if (at == std::string::npos) continue;
    size_t end = at;
    while (end > 0 && source[end - 1] == ' ') --end;
    size_t begin = end;
    while (begin > 0 && std::isdigit(static_cast<unsigned char>(source[begin - 1]))) --begin;
    if (begin == end) continue;
    const double gigabits = std::stod(source.substr(begin, end - begin));
    machine.links[1].bandwidth = kNetworkShare * gigabits * 1e9 / 8 / 8;
    break;
  }
  return machine;
}

/// Sizes that a row does not give are chosen for the least time, as if tuned.
Prediction predict(const Run& given, const Machine& machine) {
  Framework framework = framework_of(given);
  // Weights and gradients that fit on no device were sharded.
  const double least = 6 * given.params / static_cast<double>(given.tp);
  if (given.pp == 1 && framework.zero > 0 && given.experts == 0 &&
      least > static_cast<double>(machine.memory))
    framework.sharded = true;
  const int64_t share = given.global_batch / given.dp;
  std::vector<int64_t> micros = {given.micro_batch},
                       interleaves = {std::max<int64_t>(1, given.interleave)};
  if (given.micro_batch == 0) {
    micros.clear();
    for (int64_t micro = 1; micro <= std::min<int64_t>(share, 32) && share % micro == 0; micro *= 2)
      micros.push_back(micro);
  }
  const int64_t most = (given.layers + given.pp - 1) / given.pp;
  for (int64_t v = 2; v <= most && given.interleave == 0 && framework.interleaves && given.pp > 1;
       ++v) {
    if (most % v == 0) interleaves.push_back(v);
  }
  Prediction best;
  for (const int64_t micro : micros) {
    const ModelTimes model = lower_blocks(given, framework, micro, machine);
    for (const int64_t v : interleaves) {
      Run run = given;
      run.interleave = v;
      const Prediction p = predict_with(run, framework, machine, model, micro);
      if (best.micro_batch == 0 || (p.fits && (p.seconds < best.seconds || !best.fits))) best = p;
    }
  }
  return best;
}

}  // namespace tessera::runs
