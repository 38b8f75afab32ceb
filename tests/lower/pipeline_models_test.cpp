// Models in stages: the blocks of Llama, of a mixture of experts with its balance losses, and an
// encoder beside a decoder train as on one rank with the same microbatches.
#include "ir/source_ops.h"
#include "support/catch.h"
#include "support/check_equal.h"
#include "tessera/loops.h"
#include "tessera/nn_moe.h"
#include "tessera/nn_transformer.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

constexpr int64_t kBatch = 12, kLength = 4, kVocab = 11;

nn::TransformerOptions llama_block(int64_t layers) {
  nn::TransformerOptions o;
  o.name = "m";
  o.layers = layers, o.d_model = 12, o.vocab = kVocab, o.length = kLength;
  o.heads.count = 6, o.heads.key_heads = 3, o.heads.d_head = 4;
  o.mlp.ff = 10, o.mlp.gated = true, o.mlp.activation = nn::Activation::silu;
  o.norm.kind = nn::NormOptions::Kind::rms;
  o.spans[0].rotary = true;
  o.dtype = DType::float64;
  o.scan = true;
  return o;
}

/// Relative biases, and an encoder of as many layers.
nn::TransformerOptions t5(int64_t layers) {
  nn::TransformerOptions o = llama_block(layers);
  o.spans[0].rotary = false;
  o.heads.key_heads = 0, o.heads.scale = 1;
  o.relative_buckets = 8, o.relative_distance = 6;
  o.encoder_layers = layers, o.target_length = 3;
  o.tied = true;
  return o;
}

/// Blocks of experts. Every layer has losses of its router, which add up; their parts are returned
/// by layer, and count once more through a norm over the layers.
Loss experts(Graph& g, int64_t layers, int64_t batch) {
  const Dim b("batch", batch), length("length", kLength), model("d_model", 6),
      vocab("vocab", kVocab);
  Tensor tokens = g.input("inputs", {b, length}, DType::int32);
  Tensor targets = g.input("targets", {b, length}, DType::int32);
  const auto weights = [&](const std::string& name, const Shape& shape) {
    return g.parameter(name, shape, nn::normal(0.3), DType::float64);
  };
  nn::MoeOptions options;
  options.experts = Dim("experts", 4), options.hidden = Dim("ff", 5);
  options.expert.activations = {"silu"};
  options.balance = 0.1, options.z = 0.01;
  const auto block = [&](const Iteration& iteration) {
    Tensor x = iteration.carries[0];
    const nn::Moe moe = nn::moe(
        rms_norm(x, "d_model", g.parameter("scale", {model}, nn::ones(), DType::float64), 1e-5),
        "moe", "d_model", options);
    return IterationResults{{x + moe.y}, {moe.routing.balance}, {moe.loss}};
  };
  Tensor x = gather(weights("embedding", {vocab, model}), tokens, "vocab");
  const IterationResults all =
      scan(g, Dim("layers", layers), {x}, {}, block, {.own_parameters = true});
  Tensor logits = einsum({all.carries[0], weights("head", {model, vocab})}, {b, length, vocab});
  Tensor loss = mean_all(cross_entropy(logits, targets, "vocab"));
  return loss + all.sums[0] + sqrt(sum_all(square(all.stacked[0]))) * 0.05;
}

using Build = std::function<Loss(Graph&, int64_t batch)>;

Values trained(const Build& build, int64_t microbatches, const std::string& mesh,
               const std::string& layout, const std::string& schedule) {
  Graph g;
  const Minimized step = minimize_in_microbatches(
      g, "batch", microbatches, [&] { return build(g, kBatch / microbatches); },
      constant(g, 0.05, DType::float64), adam(), {.clip = 1});
  const Mesh on = Mesh::parse(mesh);
  Cluster cluster = Cluster::threads(on.size());
  Tensor loss = identity(step.loss).named("loss"),
         norm = identity(step.gradient_norm).named("norm");
  CompileOptions options{on, Layout::parse(layout), {{"train", {loss, norm}, true}}};
  options.pipeline_schedule = schedule;
  Session session(g, cluster, options);
  for (const Value& v : g.values()) {
    if (v.dtype != DType::int32 || g.nodes()[v.node].op != &kInput) continue;
    const Tensor input = g.find(v.name);
    Array tokens(DType::int32, input.shape().names(), {kBatch, input.shape()[1].size});
    for (int64_t i = 0; i < tokens.elements(); ++i)
      tokens.data<int32_t>()[i] = static_cast<int32_t>((i * i + 3 * i) % kVocab);
    session.feed(input.name(), tokens);
  }
  for (int i = 0; i < 2; ++i) session.run("train");
  Values values;
  for (const Tensor& t : {loss, norm}) values[t.name()] = session.fetch(t.name());
  for (const std::string& name : session.program().stored_names())
    values[name] = session.fetch(name);
  return values;
}

struct Case {
  int64_t layers, microbatches;
  const char *mesh, *layout;
  const char* schedule = "1f1b";
};

constexpr const char* kGpipe = "gpipe";

void check(const std::function<Build(int64_t layers)>& model, const std::vector<Case>& cases) {
  std::map<std::pair<int64_t, int64_t>, Values> plain;
  for (const Case& c : cases) {
    INFO(c.layers << " layers, " << c.microbatches << " microbatches, " << c.mesh << " "
                  << c.layout);
    const Build build = model(c.layers);
    const auto [one, is_new] = plain.try_emplace({c.layers, c.microbatches});
    if (is_new) one->second = trained(build, c.microbatches, "a:1", "", c.schedule);
    check_equal(one->second, trained(build, c.microbatches, c.mesh, c.layout, c.schedule));
  }
}

Build transformer(nn::TransformerOptions o) {
  return [o](Graph& g, int64_t batch) {
    nn::TransformerOptions size = o;
    size.batch = batch;
    return Loss(nn::transformer(g, size).loss);
  };
}

TEST_CASE("Llama's blocks train in stages as on one rank", "[pipeline]") {
  check([](int64_t layers) { return transformer(llama_block(layers)); },
        {{4, 4, "pipe:2", "layers:pipe"},
         {4, 4, "pipe:2", "layers:pipe", "zb_h1"},
         {4, 3, "pipe:4;data:2", "layers:pipe;batch:data;vocab:pipe", "zb_h1"},
         {4, 3, "pipe:3;model:2", "layers:pipe;ff:model", "zb_h1"},
         {4, 3, "pipe:4;data:2", "layers:pipe;batch:data;vocab:pipe"},
         {4, 3, "pipe:3;model:3", "layers:pipe;heads,ff:model", kGpipe},
         {4, 4, "pipe:2", "layers:pipe*2"},
         {4, 4, "pipe:2", "layers:pipe*2", "zb_h1"},
         {4, 3, "pipe:2;data:2;model:3", "layers:pipe*2;batch:data;heads,ff,vocab:model"},
         {6, 4, "pipe:3;data:2", "layers:pipe*2;batch:data;@params d_model:data;vocab:pipe"},
         {6, 4, "pipe:3;data:2", "layers:pipe*2;batch:data;@params d_model:data", "zb_v"},
         {8, 6, "pipe:4;model:2", "layers:pipe*2;ff,vocab:model;@/*norm*/ length:model", "zb_v"},
         {8, 6, "pipe:4;model:2", "layers:pipe*2;ff,vocab:model;@/*norm*/ length:model"}});
}

TEST_CASE("experts with losses of their routers train in stages as on one rank", "[pipeline]") {
  const auto model = [](int64_t layers) -> Build {
    return [layers](Graph& g, int64_t batch) { return experts(g, layers, batch); };
  };
  check(model, {{4, 4, "pipe:2", "layers:pipe"},
                {4, 4, "pipe:2", "layers:pipe", "zb_h1"},
                {4, 3, "pipe:4;data:2", "layers:pipe;batch:data;experts:data", "zb_h1"},
                {4, 3, "pipe:4;data:2", "layers:pipe;batch:data;experts:data", kGpipe},
                {4, 3, "pipe:3;data:2", "layers:pipe;batch:data;@state d_model:data"},
                {4, 4, "pipe:2", "layers:pipe*2"},
                {4, 3, "pipe:2;data:2", "layers:pipe*2;batch:data", "zb_h1"},
                {4, 4, "pipe:2", "layers:pipe*2", "zb_h1"},
                {4, 3, "pipe:2;data:2", "layers:pipe*2;batch:data;experts:data"},
                {6, 4, "pipe:3;model:2", "layers:pipe*2;ff:model"},
                {4, 3, "pipe:2;data:2", "layers:pipe*2;batch:data;experts:data", "zb_v"},
                {8, 2, "pipe:4", "layers:pipe*2;vocab:pipe", "zb_v"},
                {8, 2, "pipe:4;model:2", "layers:pipe*2;experts:model;vocab:pipe"}});
}

TEST_CASE("an encoder beside a decoder trains in stages as on one rank", "[pipeline]") {
  check([](int64_t layers) { return transformer(t5(layers)); },
        {{4, 4, "pipe:2", "layers:pipe"},
         {4, 4, "pipe:2", "layers:pipe", "zb_h1"},
         {4, 3, "pipe:4;data:2", "layers:pipe;batch:data;vocab:pipe", "zb_h1"},
         {4, 3, "pipe:3;model:2", "layers:pipe;ff:model", "zb_h1"},
         {4, 3, "pipe:4;data:2", "layers:pipe;batch:data;vocab:pipe"},
         {4, 3, "pipe:3;model:2", "layers:pipe;heads,ff:model", kGpipe},
         {4, 4, "pipe:2", "layers:pipe*2"},
         {4, 4, "pipe:2", "layers:pipe*2", "zb_h1"},
         {4, 3, "pipe:2;data:2;model:3", "layers:pipe*2;batch:data;heads,ff,vocab:model"},
         {6, 4, "pipe:3;data:2", "layers:pipe*2;batch:data;@params d_model:data"},
         {6, 4, "pipe:3;data:2", "layers:pipe*2;batch:data;@params d_model:data", "zb_v"},
         {8, 6, "pipe:4;model:2", "layers:pipe*2;ff:model", "zb_v"},
         {8, 6, "pipe:4;model:2", "layers:pipe*2;ff:model"}});
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
