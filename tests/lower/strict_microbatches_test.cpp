// Under strict numerics a training step has the same bits for any number of microbatches that are
// subtrees of the batch, on every layout.
#include <functional>
#include <map>

#include "support/catch.h"
#include "support/gpt_run.h"
#include "tessera/inspect.h"
#include "tessera/nn.h"

namespace tessera::test {

namespace TESSERA_FILE {

constexpr int64_t kBatch = 16;
using BuildLoss = std::function<Loss(Graph&, int64_t batch)>;

struct Trained {
  std::string state;
  bool depends = false;  ///< on the number of microbatches
  std::vector<Array> outputs;
};

Trained train(const BuildLoss& build, int64_t microbatches, const std::string& mesh,
              const std::string& layout, int64_t chunks = 16, bool contiguous = true,
              int64_t batch = kBatch) {
  Graph g;
  MinimizeOptions options;
  options.clip = 0.5;
  options.loop.contiguous = contiguous;
  const Minimized step = minimize_in_microbatches(
      g, "batch", microbatches, [&] { return build(g, batch / microbatches); }, constant(g, 0.01),
      adam(), options);
  Cluster cluster = Cluster::threads(Mesh::parse(mesh).size());
  std::vector<Tensor> fetched{step.loss};
  for (const Tensor& t : step.outputs) fetched.push_back(t);
  CompileOptions compile{Mesh::parse(mesh), Layout::parse(layout), {{"train", fetched, true}}};
  compile.strict_chunks = chunks;
  Session session(g, cluster, compile);
  nn::Model model;
  for (const Node& node : g.nodes()) {
    if (node.op->name == "input") model.inputs.emplace_back(&g, node.out[0]);
  }
  for (int64_t i = 0; i < 2; ++i) {
    feed_tokens(session, model, i);
    session.run("train");
  }
  Trained trained{state_hash(session).all, session.program().depends_on_microbatches("train"), {}};
  for (const Tensor& t : step.outputs) trained.outputs.push_back(session.fetch(t.name()));
  return trained;
}

BuildLoss gpt_with(const std::function<void(nn::GptOptions&)>& change) {
  return [change](Graph& g, int64_t batch) {
    nn::GptOptions o = small_gpt(DType::float32);
    o.batch = batch;
    change(o);
    const nn::Model model = nn::gpt(g, o);
    return Loss(model.loss, {}, {}, {model.logits});
  };
}

/// A loss that is a sum, with a weight for each token: exact for three microbatches, too.
Loss weighted_loss(Graph& g, int64_t batch) {
  const Dim b("batch", batch), length("length", 6), vocab("vocab", 17), d("d", 8);
  const Tensor tokens = g.input("tokens", {b, length}, DType::int32);
  Tensor x = gather(g.parameter("embedding", {vocab, d}, nn::normal(0.5)), tokens, "vocab");
  x = tanh(einsum({x, g.parameter("w", {d, {"e", 5}}, nn::normal(0.5))}, {b, length, {"e", 5}}));
  const Tensor weights = cast(greater(tokens, 4), DType::float32);
  return {sum_all(reduce_sum(square(x), {"e"}) * weights), sum_all(weights)};
}

/// A batch norm takes the mean over a microbatch.
Loss normalized_loss(Graph& g, int64_t batch) {
  const Dim b("batch", batch), length("length", 6);
  const Tensor x = cast(g.input("tokens", {b, length}, DType::int32), DType::float32);
  const Tensor y = x * g.parameter("w", {length}, nn::normal(0.5));
  return Loss(mean_all(square(y - reduce_mean(y, {"batch"}))));
}

/// Images in two convolutions, one of them strided, with a bias and a pooling.
Loss convolved_loss(Graph& g, int64_t batch) {
  const Dim b("batch", batch), rows("rows", 6), cols("cols", 9);
  const Tensor tokens = g.input("tokens", {b, {"length", 54}}, DType::int32);
  Tensor x = reshape(cast(tokens, DType::float32) * 0.1, {b, rows, cols});
  const auto filter = [&](const std::string& name, const Shape& shape) {
    return g.parameter(name, shape, nn::normal(0.3));
  };
  Conv2dOptions conv{.height = "rows", .width = "cols"};
  x = conv2d(x, filter("w", {{"filter_height", 3}, {"filter_width", 3}, {"channels", 4}}), conv);
  conv.stride = 2;
  x = conv2d(
      tanh(x),
      filter("v", {{"filter_height", 2}, {"filter_width", 3}, {"channels", 4}, {"outputs", 5}}),
      conv);
  return Loss(mean_all(square(x)));
}

const std::map<std::string, BuildLoss>& models() {
  static const std::map<std::string, BuildLoss> models = {
      {"float32", gpt_with([](nn::GptOptions&) {})},
      {"dropout and a tied head", gpt_with([](nn::GptOptions& o) {
         o.dropout = 0.1;
         o.tied = true;
       })},
      {"bfloat16", gpt_with([](nn::GptOptions& o) { o.dtype = DType::bfloat16; })},
      {"layers in a loop, bfloat16", gpt_with([](nn::GptOptions& o) {
         o.dtype = DType::bfloat16;
         o.scan = true;
       })},
      {"a weighted loss", weighted_loss},
      {"convolutions", convolved_loss}};
  return models;
}

TEST_CASE("strict: a step has one state for any number of microbatches", "[strict]") {
  const std::pair<const char*, const char*> kLayouts[] = {
      {"data:2", "batch:data"},
      {"data:3", "batch:data"},
      {"data:2;model:2", "batch:data;heads?,ff?,vocab?,rows?:model;@params d_model?:data"},
      {"model:3", "length?,rows?:model"}};
  for (const auto& [name, build] : models()) {
    const Trained whole = train(build, 1, "data:1", "");
    CHECK_FALSE(whole.depends);
    for (const int64_t microbatches : {2, 4, 8}) {
      const Trained one = train(build, microbatches, "data:1", "");
      INFO(name << ", " << microbatches << " microbatches");
      CHECK(one.state == whole.state);
      CHECK_FALSE(one.depends);
      for (size_t k = 0; k < whole.outputs.size(); ++k) {
        for (int64_t i = 0; i < whole.outputs[k].elements(); ++i)
          REQUIRE(one.outputs[k].at(i) == whole.outputs[k].at(i));
      }
      for (const auto& [mesh, layout] : kLayouts) {
        if (microbatches == 4 && name != "float32") continue;
        INFO(mesh << " " << layout);
        CHECK(train(build, microbatches, mesh, layout).state == whole.state);
      }
    }
  }
}

TEST_CASE("strict: stages add up microbatches as one rank does", "[strict]") {
  const BuildLoss build = gpt_with([](nn::GptOptions& o) { o.scan = true; });
  const std::string whole = train(build, 1, "data:1", "").state;
  for (const int64_t microbatches : {2, 8})
    CHECK(train(build, microbatches, "pipe:2;data:2", "layers:pipe;batch:data").state == whole);
}

/// A mean by its definition: the number of terms is counted in each microbatch.
Loss counted_loss(Graph& g, int64_t batch) {
  const Dim b("batch", batch), length("length", 7);
  const Tensor x = cast(g.input("tokens", {b, length}, DType::int32), DType::float32);
  const Tensor y = sin(x * g.parameter("w", {length}, nn::normal(0.5))),
               ones = broadcast(constant(g, 1), y.shape());
  return Loss(sum_all(square(y)) / sum_all(ones));
}

/// The number of terms is no power of two.
Loss mean_loss(Graph& g, int64_t batch) {
  const Dim b("batch", batch), length("length", 7);
  const Tensor x = cast(g.input("tokens", {b, length}, DType::int32), DType::float32);
  return Loss(mean_all(sin(x * g.parameter("w", {length}, nn::normal(0.5)))));
}

TEST_CASE("strict: bits are those of one microbatch, or depend on their number", "[strict]") {
  std::map<std::string, BuildLoss> all = models();
  all.insert({{"counted", counted_loss}, {"mean", mean_loss}, {"normalized", normalized_loss}});
  for (const auto& [name, build] : all) {
    const Trained whole = train(build, 1, "data:1", "", 16, true, 12);
    int equal = 0;
    for (const int64_t microbatches : {2, 3, 4, 6, 12}) {
      INFO(name << ", " << microbatches << " microbatches");
      const Trained one = train(build, microbatches, "data:1", "", 16, true, 12);
      CHECK((one.depends || one.state == whole.state));
      equal += one.state == whole.state;
    }
    if (name == "a weighted loss") CHECK(equal >= 3);
  }
}

TEST_CASE("strict: bits that depend on microbatches are told", "[strict]") {
  // Blocks of a loss are added up in their order, of one microbatch after another.
  for (const BuildLoss& build :
       {BuildLoss(normalized_loss), gpt_with([](nn::GptOptions& o) { o.loss_blocks = 3; })}) {
    const Trained one = train(build, 2, "data:1", "");
    CHECK(one.depends);
    CHECK(one.state == train(build, 2, "data:2", "batch:data").state);
  }
  // 16 examples in 8 chunks: 16 microbatches would cut them.
  const BuildLoss& gpt = models().at("float32");
  CHECK_FALSE(train(gpt, 8, "data:1", "", 8).depends);
  CHECK(train(gpt, 16, "data:1", "", 8).depends);
  const Trained interleaved = train(gpt, 2, "data:1", "", 16, false);
  CHECK(interleaved.depends);
  CHECK(interleaved.state == train(gpt, 2, "data:2", "batch:data", 16, false).state);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
