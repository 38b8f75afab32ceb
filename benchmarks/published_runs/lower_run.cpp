// The parts of a GPT- or Llama-like model as graphs, lowered and priced.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "base/fail.h"
#include "benchmarks/published_runs/runs.h"
#include "compile/kernel_info.h"
#include "cost/function_time.h"
#include "lower/lower.h"
#include "tessera/nn.h"
#include "tessera/op.h"

namespace tessera::runs {

namespace {

struct Shapes {
  Dim batch, length, d_model, ff, vocab;
  Dim experts, slots;  ///< of a rank: its experts, and the tokens of each if all have as many
};

/// Two or three matrices in the feed-forward layer, and one or two embedding tables: whatever is
/// nearest to the published number of parameters.
struct Variant {
  bool gated = false, tied = false;
};

double parameters(const Run& r, const Variant& v) {
  const auto h = static_cast<double>(r.hidden);
  const auto experts = static_cast<double>(r.experts);
  const double heads = static_cast<double>((2 * r.heads + 2 * r.kv_heads) * r.head_dim);
  const double layer = h * (heads + experts) +
                       std::max(1.0, experts) * (v.gated ? 3 : 2) * h * static_cast<double>(r.ffn);
  return static_cast<double>(r.layers) * layer +
         (v.tied ? 1 : 2) * h * static_cast<double>(r.vocab);
}

Variant variant_of(const Run& run) {
  Variant best;
  double least = -1;
  for (const Variant v :
       {Variant{false, true}, Variant{false, false}, Variant{true, false}, Variant{true, true}}) {
    const double off = std::abs(parameters(run, v) / run.params - 1);
    if (least < 0 || off < least - 1e-9) least = off, best = v;
  }
  return best;
}

Shapes shapes_of(const Run& r, int64_t micro_batch) {
  const int64_t experts = std::max<int64_t>(1, r.experts / r.ep);
  const int64_t rows = micro_batch * r.seq * r.topk / (r.tp * r.cp);
  return {{"batch", micro_batch},
          {"length", r.seq},
          {"d_model", r.hidden},
          {"ff", r.ffn},
          {"vocab", r.vocab},
          {"experts", experts},
          {"slots", std::max<int64_t>(1, rows / experts)}};
}

/// x without a dim of size 1.
Tensor without(Tensor x, const std::string& dim) { return reshape(x, x.shape().without({dim})); }

bool splits_norms(const Run& run) { return run.sp && run.tp > 1; }

bool splits_groups(const Run& run) {
  return run.kv_heads != run.heads && run.kv_heads % run.tp != 0;
}

/// Megatron's kernels read one product for queries, keys and values, and one for both branches of a
/// gated layer.
bool merges_projections(const Run& run, const Framework& framework) {
  return framework.fusion == Fusion::parts && !splits_groups(run);
}

class Builder {
 public:
  Builder(const Run& run, const Framework& framework, const Recompute& recompute,
          int64_t micro_batch)
      : run_(run),
        framework_(framework),
        recompute_(recompute),
        variant_(variant_of(run)),
        s_(shapes_of(run, micro_batch)) {}

  const Shapes& shapes() const { return s_; }

  /// `count` blocks on a stream of activations. If there are experts, a block has a router instead
  /// of the feed-forward layer.
  std::vector<FunctionSpec> layers(Graph& g, int64_t count) const {
    Tensor x = stream(g);
    for (int64_t i = 0; i < count; ++i) {
      Scope scope(g, fmt::format("block{}", i));
      x = residual(x, attention(normalized(x, "1")), "1");
      const Tensor y = normalized(x, "2");
      x = residual(x, run_.experts > 0 ? routed(y) : feed_forward(y), "2");
    }
    std::vector<std::string> scopes = {"core"};
    if (run_.experts == 0) scopes.emplace_back("mlp");
    return functions(g, mean_all(cast(x, DType::float32)), scopes);
  }

  /// What the experts of a rank do in `count` blocks, with as many tokens each.
  std::vector<FunctionSpec> experts(Graph& g, int64_t count) const {
    Tensor x = g.parameter("norm_stream", {s_.experts, s_.slots, s_.d_model}, nn::zeros(),
                           DType::bfloat16);
    for (int64_t i = 0; i < count; ++i) {
      Scope scope(g, fmt::format("block{}", i));
      x = feed_forward(x);
    }
    return functions(g, mean_all(cast(x, DType::float32)), {"mlp"});
  }

  std::vector<FunctionSpec> head(Graph& g) const {
    const Tensor x = stream(g);
    const Tensor labels = g.input("labels", {s_.batch, s_.length}, DType::int32);
    const Tensor logits = nn::dense(normalized(x, ""), "head", {"d_model"}, Shape{s_.vocab}, false);
    return functions(g, mean_all(cross_entropy(cast(logits, DType::float32), labels, "vocab")), {});
  }

  std::vector<FunctionSpec> embedding(Graph& g) const {
    const Tensor tokens = g.input("tokens", {s_.batch, s_.length}, DType::int32);
    const Tensor table = g.parameter("table", {s_.vocab, s_.d_model}, nn::zeros(), DType::bfloat16);
    const Tensor x = gather(table, tokens, "vocab");
    return functions(g, mean_all(cast(x, DType::float32)), {});
  }

 private:
  /// The activations between layers. The name lets sequence parallelism split them.
  Tensor stream(Graph& g) const {
    return g.parameter("norm_stream", {s_.batch, s_.length, s_.d_model}, nn::zeros(),
                       DType::bfloat16);
  }

  Tensor normalized(Tensor x, const char* number) const {
    Graph& g = x.graph();
    const std::string name = std::string("norm") + number;
    Scope scope(g, "layernorm");
    const Tensor scale = g.parameter(name + ".scale", {s_.d_model}, nn::ones(), DType::bfloat16);
    if (variant_.gated) return rms_norm(x, "d_model", scale).named(name);
    const Tensor bias = g.parameter(name + ".bias", {s_.d_model}, nn::zeros(), DType::bfloat16);
    return layer_norm(x, "d_model", scale, bias).named(name);
  }

  Tensor residual(Tensor x, Tensor change, const std::string& number) const {
    Scope scope(x.graph(), "norm");
    if (framework_.dropout > 0) change = dropout(change, framework_.dropout);
    return (x + change).named("norm_residual" + number);
  }

  /// Frameworks gather activations whose length is split, however large they are. So what a product
  /// reads, or gives, is a tensor of its own, which is not split.
  Tensor whole(Tensor x, const char* from, const char* to) const {
    if (!splits_norms(run_)) return x;
    Scope scope(x.graph(), kWhole);
    return rename(x, from, to);
  }
  /// The dim that a layer's first products sum over.
  const char* inner() const { return splits_norms(run_) ? "d_in" : "d_model"; }
  Dim outer() const { return splits_norms(run_) ? Dim("d_out", run_.hidden) : s_.d_model; }

  Tensor attention(Tensor x) const {
    Scope scope(x.graph(), "attention");
    x = whole(x, "d_model", "d_in");
    const Dim heads("heads", run_.kv_heads), d_head("d_head", run_.head_dim);
    Shape queries{heads, d_head};
    if (run_.kv_heads != run_.heads)
      queries = Shape{heads, Dim("heads_per_key", run_.heads / run_.kv_heads), d_head};
    const bool bias = has_bias();
    Tensor query, key, value;
    {
      Scope projections(x.graph(), "projections");
      if (merges_projections(run_, framework_)) {
        const int64_t group = run_.heads / run_.kv_heads;
        const Tensor all = nn::dense(x, "qkv", {inner()},
                                     Shape{heads, Dim("heads_per_key", group + 2), d_head}, bias);
        query = slice(all, "heads_per_key", 0, group);
        if (group == 1) query = without(query, "heads_per_key");
        key = without(slice(all, "heads_per_key", group, 1), "heads_per_key");
        value = without(slice(all, "heads_per_key", group + 1, 1), "heads_per_key");
      } else {
        query = nn::dense(x, "query", {inner()}, queries, bias);
        key = nn::dense(x, "key", {inner()}, Shape{heads, d_head}, bias);
        value = nn::dense(x, "value", {inner()}, Shape{heads, d_head}, bias);
      }
      if (run_.normed) query = normalized_heads(query, "query"), key = normalized_heads(key, "key");
      if (variant_.gated) {
        query = nn::rotary(query, "length", "d_head");
        key = nn::rotary(key, "length", "d_head");
      }
    }
    const auto memory = [](Tensor t) { return rename(t, "length", "memory_length"); };
    return whole(nn::dense(core(query, memory(key), memory(value)), "out", queries.names(),
                           Shape{outer()}, bias),
                 "d_out", "d_model");
  }

  Tensor normalized_heads(Tensor x, const std::string& name) const {
    return rms_norm(x, "d_head",
                    x.graph().parameter(name + "_norm.scale", {x.shape().dim("d_head")}, nn::ones(),
                                        DType::bfloat16));
  }

  /// Llama and MPT have no biases.
  bool has_bias() const { return !variant_.gated && framework_.fusion == Fusion::parts; }

  Tensor core(Tensor query, Tensor key, Tensor value) const {
    Scope scope(query.graph(), "core");
    AttentionOptions options;
    options.causal = true;
    if (!framework_.flash) options.dropout = framework_.dropout;
    return tessera::attention(query, key, value, {}, options);
  }

  /// For experts, x has their dim, and each has weights of its own.
  Tensor feed_forward(Tensor x) const {
    Scope scope(x.graph(), "mlp");
    nn::DenseOptions o;
    o.bias = has_bias();
    const bool is_expert = x.shape().has("experts");
    if (is_expert) o.bias = false, o.stacked = {"experts"};
    const char* in = is_expert ? "d_model" : inner();
    if (!is_expert) x = whole(x, "d_model", "d_in");
    const auto up = [&](const char* name) { return nn::dense(x, name, {in}, Shape{s_.ff}, o); };
    const std::string activation = variant_.gated ? "silu" : "gelu";
    Tensor hidden, linear;
    if (variant_.gated && framework_.fusion == Fusion::parts) {
      const Tensor both = nn::dense(x, "up", {in}, Shape{Dim("branch", 2), s_.ff}, o);
      hidden = without(slice(both, "branch", 0, 1), "branch");
      linear = without(slice(both, "branch", 1, 1), "branch");
    } else {
      hidden = up("up0");
      if (variant_.gated) linear = up("up1");
    }
    {
      Scope scope_of_it(x.graph(), "activation");
      hidden = nn::activate(hidden, activation);
      if (variant_.gated) hidden = hidden * linear;
    }
    if (is_expert) return nn::dense(hidden, "down", {"ff"}, Shape{s_.d_model}, o);
    return whole(nn::dense(hidden, "down", {"ff"}, Shape{outer()}, o), "d_out", "d_model");
  }

  /// The router's probabilities and what they weight. What the experts add is priced elsewhere.
  Tensor routed(Tensor x) const {
    Scope scope(x.graph(), "router");
    const Dim all("all_experts", run_.experts);
    const Tensor logits = nn::dense(x, "router", {"d_model"}, Shape{all}, false);
    const Tensor gates =
        reduce_sum(softmax(cast(logits, DType::float32), "all_experts"), "all_experts");
    return x * cast(gates, DType::bfloat16);
  }

  /// `scopes`: those that can be recomputed.
  std::vector<FunctionSpec> functions(Graph& g, Tensor loss,
                                      const std::vector<std::string>& scopes) const {
    GradientOptions options;
    if (recompute_.kind == Recompute::Kind::full && !scopes.empty()) options.recompute = {"block"};
    for (const std::string& scope : recompute_.scopes) {
      if (std::find(scopes.begin(), scopes.end(), scope) != scopes.end())
        options.recompute.push_back(scope);
    }
    const std::vector<Tensor> xs = g.parameters();
    return {{"forward", {loss}, false}, {"backward", gradients(loss, xs, options), false}};
  }

  const Run& run_;
  const Framework& framework_;
  const Recompute& recompute_;
  Variant variant_;
  Shapes s_;
};

std::string layout_of(const Run& run) {
  std::string layout;
  if (run.tp > 1) {
    layout = fmt::format("{},ff?,vocab?:model", splits_groups(run) ? "heads_per_key?" : "heads?");
    if (splits_norms(run))
      layout += fmt::format("; @/*norm*/ length?:{}model", run.cp > 1 ? "context+" : "");
  }
  if (run.cp > 1) layout += fmt::format("{}length:context", layout.empty() ? "" : "; ");
  return layout;
}

bool is_attention(KernelKind kind) {
  return kind == KernelKind::attention || kind == KernelKind::attention_grad ||
         kind == KernelKind::attention_part;
}

/// The frameworks give each context rank two intervals of the queries, so that causal attention is
/// as much work on all of them.
void balance_attention(Function& function) {
  for (Step& step : function.steps) {
    if (is_attention(step.kernel)) step.as<AttentionSpec>().visible = 0.5;
  }
}

/// A tile of queries has a start and an end, which take as long as so many keys. Fitted on no run:
/// FlashAttention-2 on H100, head size 128, reaches 214, 260, 291, 310, 318 and 322 TFLOP/s at 512,
/// 1,024, ... 16,384 tokens (Shah et al. 2024, fig. 6), which is 325 n / (n + 265), and causal
/// order halves the work of a tile. The profiles' rates are those at 4,096 tokens.
constexpr double kHalfLength = 530, kRatedLength = 4096;
constexpr double kTileQueries = 128;  ///< that one tile computes
/// The rate of attention at heads of 64, relative to 128, from Hopper on: the exponentials of a
/// score take as long. Same paper, fig. 5: 497 and 648 TFLOP/s. On B200 cuDNN has 651 at 4,096
/// tokens (facebookexperimental/triton, pull request 891), where the profile has 1,060.
constexpr double kSmallHeads = 0.77, kSmallHeadsBlackwell = 0.61;

void shorten_rows(const Run& run, const Framework& framework, Function& function) {
  const auto length = static_cast<double>(run.seq);
  double slower = (1 + kHalfLength / length) / (1 + kHalfLength / kRatedLength);
  if (framework.keeps_converted && run.head_dim <= 64)
    slower /= is_blackwell(run) ? kSmallHeadsBlackwell : kSmallHeads;
  // Every second layer sees a window: its tiles have as many keys more as they have queries, and a
  // start and an end as all.
  if (run.window > 0) {
    const double keys = std::min(length, static_cast<double>(run.window) + kTileQueries),
                 whole = (length + kHalfLength) / 2;
    slower *= (1 + std::min(1.0, (keys + kHalfLength / 2) / whole)) / 2;
  }
  for (Step& step : function.steps) {
    if (is_attention(step.kernel))
      step.flops = std::llround(static_cast<double>(step.flops) * slower);
  }
}

std::set<const Op*> kernels_of(const Framework& framework) {
  std::set<const Op*> kernels;
  for (const Op* op : all_ops()) {
    if (op->body == nullptr || op->routing) continue;
    const bool is_kernel =
        is_attention(op->kernel) ? framework.flash : op->name != "masked_attention";
    if (is_kernel) kernels.insert(op);
  }
  return kernels;
}

bool only_converts(const Step& step) {
  return step.kernel == KernelKind::pointwise &&
         std::all_of(step.pointwise.code.begin(), step.pointwise.code.end(), [](const Instr& i) {
           return i.code == PointwiseOp::load || converts(i.code);
         });
}

/// Weights are kept in the matmuls' dtype, so steps that only convert a stored tensor are dropped.
bool converts_stored(const Program& program, const Step& step) {
  if (step.kind != StepKind::compute || step.in.size() != 1) return false;
  if (program.buffers[step.in[0].buffer].arena == ArenaKind::transient) return false;
  return info_of(step.kernel).is_copy || only_converts(step);
}

struct Lowered {
  FunctionTime forward, both;
  double again = 0;  ///< seconds of what backward computes again, unless `both` has it
  double params = 0, kept = 0;
  double kept_by_op = 0;  ///< bytes that a policy by op keeps
  double launches_forward = 0, launches_both = 0;
};

constexpr int kContextAxis = 0, kModelAxis = 1;  ///< in the mesh of price()

/// Sequence parallelism: each all_reduce over the model ranks becomes a reduce_scatter.
void reduce_to_shares(Program& program) {
  for (Function& f : program.functions) {
    for (Step& step : f.steps) {
      if (!is_collective(step, CollectiveKind::all_reduce) ||
          std::count(step.axes.begin(), step.axes.end(), kModelAxis) == 0)
        continue;
      step.collective = CollectiveKind::reduce_scatter;
      step.bytes /= 2;
    }
  }
}

/// True if `buffer` is an output, perhaps after elementwise steps.
bool is_output(const Function& f, const std::set<int>& outputs, int buffer) {
  bool found = outputs.contains(buffer);
  for (const Step& step : f.steps) {
    const bool reads = std::any_of(step.in.begin(), step.in.end(),
                                   [&](const View& v) { return v.buffer == buffer; });
    if (!reads || step.out.empty() || step.out[0].buffer == buffer) continue;
    if (!info_of(step.kernel).is_elementwise) return false;
    if (!is_output(f, outputs, step.out[0].buffer)) return false;
    found = true;
  }
  return found;
}

/// Gradients are reduced over the context ranks once per step, with those of the data ranks, not in
/// each microbatch.
void defer_gradients(const Program& program, Function& f) {
  std::set<int> outputs, moved, awaited;
  for (const int port : f.outputs) outputs.insert(program.ports[port].view.buffer);
  const auto is_deferred = [&](const Step& step) {
    return is_collective(step, CollectiveKind::all_reduce) &&
           step.axes == std::vector<int>{kContextAxis} && is_output(f, outputs, step.out[0].buffer);
  };
  for (const Step& step : f.steps) {
    if (step.kind == StepKind::collective)
      (is_deferred(step) ? moved : awaited).insert(step.number);
  }
  std::vector<Step> kept;
  for (const Step& step : f.steps) {
    const bool waits_in_vain = step.kind == StepKind::wait && moved.contains(step.number) &&
                               !awaited.contains(step.number);
    if (!is_deferred(step) && !waits_in_vain) kept.push_back(step);
  }
  f.steps = std::move(kept);
}

/// The products of parameters' gradients write the dtype of the sums.
void drop_conversions_of_gradients(const Program& program, Function& f) {
  std::set<int> outputs;
  for (const int port : f.outputs) outputs.insert(program.ports[port].view.buffer);
  std::erase_if(f.steps, [&](const Step& step) {
    return step.kind == StepKind::compute && !step.out.empty() &&
           outputs.contains(step.out[0].buffer) && only_converts(step);
  });
}

/// The machine, with the rates that a framework reaches, and with matmuls in `product` where the
/// model has bfloat16.
Machine used(const Run& run, const Machine& machine, const Framework& framework,
             const std::string& product) {
  Machine m = machine;
  const double traffic = framework.traffic ? value_of(*framework.traffic, run) : 1;
  for (MemoryRate& rate : m.memory_rates) rate.bandwidth /= traffic;
  for (MatmulRate& rate : m.matmuls) rate.flops *= product_rate(m.name, run);
  for (KernelRate& rate : m.kernels) {
    if (is_attention(find_kernel(rate.kernel).value_or(KernelKind::none)))
      rate.flops *= framework.attention;
  }
  if (product == "bfloat16") return m;
  static_cast<void>(m.matmul_seconds(product, 1, 1, 1));  // throws if there is none
  std::erase_if(m.matmuls, [](const MatmulRate& r) { return r.dtype == "bfloat16"; });
  for (MatmulRate& r : m.matmuls) {
    if (r.dtype == product) r.dtype = "bfloat16";
  }
  return m;
}

/// Buffers that hold parameters, or parameters in another dtype or order.
std::set<int> weights_of(const Program& program, const Function& function) {
  std::set<int> weights;
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    if (program.buffers[b].arena != ArenaKind::transient) weights.insert(static_cast<int>(b));
  }
  for (const Step& step : function.steps) {
    if (converts_stored(program, step)) weights.insert(step.out[0].buffer);
  }
  return weights;
}

enum class Part { layers, experts, ends };

/// Kernels of a function. Of `groups` experts each has its own products and conversions. If an
/// operand is read several times, that is a kernel each, and one for the scale.
double launches_of(const Function& function, const Precision& precision, double groups) {
  const double conversion = precision.reads > 1 ? precision.reads + 1 : 1;
  double launches = 0;
  for (const Step& step : function.steps) {
    if (step.kind != StepKind::compute) continue;
    if (step.kernel == KernelKind::matmul)
      launches += groups;
    else
      launches += is_conversion(step) ? groups * conversion : 1;
  }
  return launches;
}

/// What it takes more if each of `groups` experts has kernels of its own, with waves of their own.
double apart(const Function& function, const Costs& costs, const Precision& precision,
             double groups) {
  const Machine& machine = costs.machine();
  double seconds =
      (launches_of(function, precision, groups) - launches_of(function, precision, 1)) *
      machine.launch;
  for (const Step& step : function.steps) {
    if (step.kernel != KernelKind::matmul) continue;
    const MatmulSizes p = matmul_sizes(step);
    const std::string dtype = to_string(step.in[0].dtype);
    const auto part = static_cast<int64_t>(static_cast<double>(p.batch) / groups);
    if (part > 0)
      seconds += groups * machine.matmul_seconds(dtype, p.m, p.n, p.k, part) -
                 machine.matmul_seconds(dtype, p.m, p.n, p.k, p.batch);
  }
  return seconds;
}

/// cuDNN's product of the gradient of a gated activation, with the gradient of biases, in the
/// release 26.06.01: 1,363 and 139 us (cudnn-frontend, issue 256 and pull request 322).
constexpr double kSlowBiasGradient = 1363.0 / 139;

/// What the products of experts take more than their sizes say.
double slower_products(const Run& run, const Function& function, const std::set<int>& weights,
                       const Costs& costs) {
  if (!is_blackwell(run)) return 0;
  double seconds = 0;
  for (const Step& step : function.steps) {
    if (step.kernel != KernelKind::matmul) continue;
    const MatmulSizes p = matmul_sizes(step);
    const bool is_odd = p.n % 128 != 0 || p.k % 128 != 0;
    const double once = costs.compute(step),
                 odd = is_odd ? value_of(Constant::odd_products, run) : 1;
    const bool reads_weight = std::any_of(
        step.in.begin(), step.in.end(), [&](const View& v) { return weights.contains(v.buffer); });
    const bool is_slow = experts_of(run).slow_gradient && reads_weight &&
                         step.origin.name.find("mlp.einsum_1.grad") != std::string::npos;
    seconds += once * (odd * (is_slow ? kSlowBiasGradient : 1) - 1);
  }
  return seconds;
}

Lowered price(const Run& run, const Framework& framework, const Machine& given, Part part,
              const Recompute& recompute,
              const std::function<std::vector<FunctionSpec>(Graph&)>& build) {
  Graph graph;
  const std::vector<FunctionSpec> functions = build(graph);
  const bool has_axes = part != Part::experts;  // their slots are those of one rank
  const Mesh mesh =
      Mesh::parse(fmt::format("context:{};model:{}", has_axes ? run.cp : 1, has_axes ? run.tp : 1));
  LowerOptions options{mesh,      Layout::parse(has_axes ? layout_of(run) : ""),
                       functions, kernels_of(framework),
                       {},        {}};
  options.fuse = false;
  Program program = lower(graph, options);
  if (splits_norms(run)) reduce_to_shares(program);
  const Precision precision = part == Part::ends ? Precision{} : precision_of(run.dtype);
  const Costs costs(used(run, given, framework, precision.product), mesh);
  Lowered result;
  double launches = 0;  // of what was priced last
  const auto priced = [&](Function f) {
    const std::set<int> weights = weights_of(program, f);
    std::erase_if(f.steps, [&](const Step& step) { return converts_stored(program, step); });
    if (run.cp > 1) balance_attention(f);
    const bool is_ring = framework.traced_context && run.cp > 1 && part == Part::layers;
    if (is_ring) drop_gathers(kContextAxis, f);
    shorten_rows(run, framework, f);
    if (f.name == "backward") defer_gradients(program, f);
    if (framework.keeps_converted) drop_conversions_of_gradients(program, f);
    join_kernels(program, framework.fusion, f);
    quantize(precision, framework, weights, kModelAxis, f);
    if (framework.batch_first) copy_gathered(kModelAxis, f);
    // Userbuffers carry no 4-bit operands (Megatron-Bridge's recipes turn them off for NVFP4).
    if (framework.overlaps_tensor && precision.bytes >= 1)
      overlap_products(kModelAxis, mesh.axes()[kModelAxis].size, f);
    if (part == Part::experts && experts_of(run).fused) drop_fused(f);
    const double groups =
        part == Part::experts ? static_cast<double>(run.experts) / static_cast<double>(run.ep) : 1;
    launches = launches_of(f, precision, groups);
    FunctionTime time = time_of(f, costs);
    if (is_ring) time.seconds += ring_seconds(f, costs, kContextAxis);
    if (part != Part::experts || !experts_of(run).fused)
      time.seconds += apart(f, costs, precision, groups);
    if (part == Part::experts) time.seconds += slower_products(run, f, weights, costs);
    return time;
  };
  for (const Function& f : program.functions) {
    if (f.kind == FunctionKind::init) continue;
    (f.name == "forward" ? result.forward : result.both) = priced(f);
    (f.name == "forward" ? result.launches_forward : result.launches_both) = launches;
    const bool by_op = recompute.kind == Recompute::Kind::per_op;
    if (f.name != "forward" || (!by_op && recompute.discarded.empty())) continue;
    Function again = f;
    if (by_op) result.kept_by_op = drop_kept(again);
    if (!by_op) keep_scopes(recompute.discarded, again);
    result.again = priced(again).seconds;
  }
  for (int port : program.stored) {
    if (program.ports[port].name == "norm_stream") continue;
    result.params += static_cast<double>(program.ports[port].view.elements());
  }
  result.kept = static_cast<double>(program.transient_bytes);
  return result;
}

BlockTimes block_of(const Lowered& all, const Lowered& rest) {
  const double forward = all.forward.seconds - rest.forward.seconds,
               both = all.both.seconds - rest.both.seconds,
               moved = all.forward.exposed - rest.forward.exposed,
               moved_both = all.both.exposed - rest.both.exposed;
  const double params = all.params - rest.params,
               gradients = params * (4.0 + 2.0);  // and the weights as matmuls read them
  return {forward,
          both - forward + all.again - rest.again,
          moved,
          moved_both - moved,
          params,
          0,
          all.kept_by_op > 0 ? all.kept_by_op - rest.kept_by_op
                             : std::max(0.0, all.kept - rest.kept - gradients),
          all.launches_forward - rest.launches_forward,
          all.launches_both - rest.launches_both - all.launches_forward + rest.launches_forward};
}

/// Of a rank.
double tokens_of(const Run& run, int64_t micro_batch) {
  return static_cast<double>(micro_batch * run.seq) / static_cast<double>(run.tp * run.cp);
}

/// What is sent in a pass: tokens to the experts, and back.
BlockTimes dispatch_of(const Run& run, const Experts& experts, const Machine& machine,
                       int64_t micro_batch) {
  const double tokens = tokens_of(run, micro_batch);
  const double sent = 2 * send_seconds(run, experts, machine, tokens);
  const double kept = 2 * tokens * static_cast<double>(run.topk * run.hidden);
  return {sent, sent, sent, sent, 0, 0, kept, 0, 0};
}

BlockTimes operator*(double share, const BlockTimes& a) {
  return {share * a.forward,
          share * a.backward,
          share * a.transfer_forward,
          share * a.transfer_backward,
          share * a.params,
          share * a.expert_params,
          share * a.kept,
          share * a.launches_forward,
          share * a.launches_backward};
}

BlockTimes layer_of(const Run& run, const Framework& framework, const Recompute& recompute,
                    int64_t micro_batch, const Machine& machine) {
  const Builder builder(run, framework, recompute, micro_batch);
  const auto difference = [&](Part part, auto build) {
    const auto blocks = [&](int64_t count) {
      return price(run, framework, machine, part, recompute,
                   [&](Graph& g) { return (builder.*build)(g, count); });
    };
    return block_of(blocks(2), blocks(1));
  };
  const BlockTimes layer = difference(Part::layers, &Builder::layers);
  if (run.experts == 0) return layer;
  BlockTimes own = difference(Part::experts, &Builder::experts);
  own.expert_params = own.params;
  const Experts experts = experts_of(run);
  if (run.biased && !experts.fused)
    own = own + biases_of(run, experts, machine, tokens_of(run, micro_batch),
                          std::count(recompute.discarded.begin(), recompute.discarded.end(),
                                     "activation") > 0);
  BlockTimes sent = dispatch_of(run, experts, machine, micro_batch);
  if (recompute.kind == Recompute::Kind::full)
    sent.backward += sent.forward, sent.transfer_backward += sent.transfer_forward;
  return routed_layer(experts, layer, own, sent);
}

/// All of a layer is recomputed: backward runs its forward again, to the end if the framework does.
BlockTimes recomputed_layer(const Run& run, const Framework& framework, int64_t micro_batch,
                            const Machine& machine) {
  const Recompute::Kind kind = framework.reruns ? Recompute::Kind::none : Recompute::Kind::full;
  BlockTimes layer = layer_of(run, framework, {kind}, micro_batch, machine);
  if (!framework.reruns) return layer;
  layer.backward += layer.forward;
  layer.transfer_backward += layer.transfer_forward;
  layer.kept = 2.0 * static_cast<double>(micro_batch * run.seq * run.hidden) /
               static_cast<double>(run.cp * (run.sp ? run.tp : 1));
  return layer;
}

/// The layers of a stage that are recomputed.
double recomputed_share(const Run& run, const Recompute& recompute) {
  if (recompute.every > 0) return 1 / static_cast<double>(recompute.every);
  if (recompute.layers == 0) return 1;
  const int64_t chunks = run.pp * std::max<int64_t>(1, run.interleave);
  return std::min(1.0,
                  static_cast<double>(recompute.layers * chunks) / static_cast<double>(run.layers));
}

}  // namespace

BlockTimes operator+(const BlockTimes& a, const BlockTimes& b) {
  return {a.forward + b.forward,
          a.backward + b.backward,
          a.transfer_forward + b.transfer_forward,
          a.transfer_backward + b.transfer_backward,
          a.params + b.params,
          a.expert_params + b.expert_params,
          a.kept + b.kept,
          a.launches_forward + b.launches_forward,
          a.launches_backward + b.launches_backward};
}

ModelTimes lower_blocks(const Run& run, const Framework& framework, int64_t micro_batch,
                        const Machine& machine) {
  Recompute recompute =
      recompute_of(run.recompute == "none" ? experts_of(run).recompute : run.recompute);
  if (recompute.kind == Recompute::Kind::selective) {
    recompute.kind = framework.selective;
    if (recompute.kind == Recompute::Kind::modules) recompute.scopes = {"core"};
  }
  ModelTimes model;
  if (recompute.kind == Recompute::Kind::full) {
    const double share = recomputed_share(run, recompute);
    model.layer = share * recomputed_layer(run, framework, micro_batch, machine);
    if (share < 1)
      model.layer = model.layer + (1 - share) * layer_of(run, framework, {}, micro_batch, machine);
  } else {
    model.layer = layer_of(run, framework, recompute, micro_batch, machine);
  }
  const Recompute none;
  const Builder builder(run, framework, none, micro_batch);
  const auto end = [&](auto build) {
    return block_of(price(run, framework, machine, Part::ends, none,
                          [&](Graph& g) { return (builder.*build)(g); }),
                    {});
  };
  model.head = end(&Builder::head);
  model.embedding = end(&Builder::embedding);
  return model;
}

}  // namespace tessera::runs
