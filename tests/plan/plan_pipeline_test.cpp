// Simulated pipelines of other frameworks, against plans without one and hand-computed figures.
#include "cost/pipeline_simulator.h"
#include "plan/layer_cut.h"
#include "plan/plan_models.h"
#include "support/catch.h"
#include "support/expect_error.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// A gpt whose batch is worked off in parts.
PlanModel parted_model(int64_t layers) {
  nn::GptOptions o = options_of(512, 256);
  o.batch = 32;
  PlanModel model = gpt_model(layers, o);
  model.microbatches = {1, 2, 4, 8, 16, 32};
  model.build = [o](const PlanBuild& build) {
    if (build.microbatches == 1) return gpt_step(build, o);
    nn::GptOptions size = o;
    size.layers = build.layers;
    size.batch = o.batch / build.microbatches;
    const auto graph = std::make_shared<Graph>();
    const Tensor lr = graph->input("lr", {}, DType::float32);
    const Minimized m =
        minimize_in_microbatches(*graph, "batch", build.microbatches,
                                 [&] { return nn::gpt(*graph, size).loss; }, lr, adam({}), {});
    return PlanStep{graph, {{"train", {m.loss}, true}}};
  };
  return model;
}

PlanBuild in_parts(int64_t microbatches) {
  PlanBuild build;
  build.microbatches = microbatches;
  return build;
}

TEST_CASE("layers are dealt to chunks, and what is none to the ends", "[pipeline]") {
  const std::vector<ChunkTime> chunks =
      assign_virtual_stages({1, 2, 1, 2}, {1, 2}, {0.5, 1}, {0.25, 0.75});
  REQUIRE(chunks.size() == 4);
  const double forward[] = {1.5, 2, 1, 2.25}, backward[] = {3, 4, 2, 4.75};
  for (size_t c = 0; c < 4; ++c) {
    CHECK(chunks[c].forward == Approx(forward[c]));
    CHECK(chunks[c].backward == Approx(backward[c]));
  }
  const std::vector<ChunkTime> one = assign_virtual_stages({6}, {1, 2}, {0.5, 1}, {0.25, 0.75});
  CHECK(one[0].forward == Approx(6.75));
  CHECK(one[0].backward == Approx(13.75));
}

TEST_CASE("a stage holds as many microbatches as it is ahead", "[pipeline]") {
  Pipeline p;
  p.stages = 4;
  p.microbatches = 8;
  p.chunks.assign(4, {1, 2});
  for (int stage = 0; stage < 4; ++stage) CHECK(microbatches_kept(p, stage) == 4 - stage);
  p.microbatches = 2;
  CHECK(microbatches_kept(p, 0) == 2);
  p.chunks.assign(8, {1, 2});
  p.microbatches = 8;  // interleaved: p (1 + (p - 1) / (p v))
  CHECK(microbatches_kept(p, 0) == Approx(4 * (1 + 3.0 / 8)));
  p.microbatches = 4;  // all forwards come first
  CHECK(microbatches_kept(p, 0) == 4);
}

TEST_CASE("ranks that have the same hand over a share each", "[pipeline]") {
  const Costs costs(a100(), Mesh::parse("stage:2;data:2;model:8"));
  const double bytes = 1 << 24;
  CHECK(hand_over(costs, bytes, {0}, {2}) ==
        Approx(costs.collective(CollectiveKind::exchange, bytes / 8, {0}) +
               costs.collective(CollectiveKind::all_gather, bytes, {2})));
  CHECK(hand_over(costs, bytes, {0}, {}) ==
        Approx(costs.collective(CollectiveKind::exchange, bytes, {0})));
}

TEST_CASE("plan: the layers of a model are found by what two of them have more", "[plan]") {
  const auto build = [](Graph& g, int layers, bool alike) {
    const Dim rows("rows", 8), in("in", 4);
    Tensor x = g.input("x", {rows, in}, DType::float32);
    const Tensor table = g.parameter("table", {in}, nn::zeros(), DType::float32);
    x = x * table;
    for (int l = 0; l < layers; ++l)
      x = l > 0 && !alike ? sigmoid(x) : tanh(exp(x)).named("made" + std::to_string(l));
    return sum_all(x * g.parameter("head", {rows, in}, nn::zeros(), DType::float32));
  };
  Graph one, two, other;
  const Tensor end = build(one, 1, true), end2 = build(two, 2, true);
  const LayerCut cut = cut_layers(one, end.id(), two, end2.id(), a100(), "net");
  REQUIRE(cut.handed.size() == 1);
  CHECK(two.value(cut.handed[0]).name == "made0");
  CHECK(cut.params_before == Approx(1.0 / 9));  // 4 of 36 elements
  CHECK(cut.params_behind == Approx(8.0 / 9));
  CHECK(cut.time_before > 0);
  CHECK(cut.time_before < 1);
  const Tensor end3 = build(other, 2, false);
  expect_usage({"[plan] net: with two layers the forward pass has 5 ops, with one 5",
                "layers that are built alike"},
               [&] { cut_layers(one, end.id(), one, end.id(), a100(), "net"); });
  expect_usage({"[plan] net: with two layers", "layers that are built alike"},
               [&] { cut_layers(two, end2.id(), other, end3.id(), a100(), "net"); });
}

TEST_CASE("plan: a pipeline of one stage is the plan without one", "[plan]") {
  const PlanModel model = parted_model(4);
  for (const char* layout : {"batch:data", "batch:data;heads,ff,vocab:model"}) {
    INFO(layout);
    const Mesh mesh = Mesh::parse("data:2;model:2");
    const PricedPlan plain = price(model, mesh, Layout::parse(layout), in_parts(4), a100());
    const PipelinePlan one =
        price_pipeline(model, mesh, Layout::parse(layout), in_parts(4), 1, 1, a100());
    CHECK(one.stage.seconds == Approx(plain.seconds).epsilon(1e-6));
    CHECK(one.stage.compute == Approx(plain.compute).epsilon(1e-6));
    CHECK(one.stage.bubble < 1e-6 * plain.seconds);
    CHECK(one.transfer == 0);
    CHECK(one.stage.params == plain.params);
    CHECK(one.stage.state == plain.state);
    CHECK(static_cast<double>(one.stage.memory()) ==
          Approx(static_cast<double>(plain.memory())).epsilon(0.01));
  }
}

TEST_CASE("plan: stages wait for the first and the last microbatch", "[plan]") {
  const PlanModel model = parted_model(8);
  const Mesh mesh = Mesh::parse("data:2");
  const auto priced = [&](int64_t stages, int64_t chunks, int64_t microbatches) {
    return price_pipeline(model, mesh, Layout::parse("batch:data"), in_parts(microbatches), stages,
                          chunks, a100());
  };
  const PipelinePlan one = priced(1, 1, 8), four = priced(4, 1, 8), twice = priced(4, 2, 8);
  const PricedPlan& p = four.stage;
  CHECK(p.seconds == Approx(p.compute + p.slowed + p.exposed + p.bubble));
  CHECK(p.seconds < one.stage.seconds);
  CHECK(p.memory() < one.stage.memory());
  // Three of eleven rounds of a stage's work are bubble, at least: its stages are not all equal.
  const double busy = p.seconds - p.bubble;
  CHECK(p.bubble > 0.5 * 3.0 / 8 * busy);
  CHECK(p.bubble < 1.5 * 3.0 / 8 * busy);
  CHECK(twice.stage.bubble < 0.8 * p.bubble);
  CHECK(four.transfer > 0);
  CHECK(four.handed ==
        32 / 8 / 2 * 256 * 512 * 2);  // examples of a rank, length, d_model, bfloat16
  // Of each further microbatch a layer keeps 34 bytes an element of the stream, and norms in
  // float32.
  const double stream = 32.0 / 8 / 2 * 256 * 512;
  const double more = static_cast<double>(priced(2, 1, 8).stage.transient) -
                      static_cast<double>(priced(1, 1, 8).stage.transient) / 2;
  INFO(more / stream);
  CHECK(more > 4 * 20 * stream);
  CHECK(more < 4 * 60 * stream + 2 * 32 * 512 * 512);
  expect_usage({"[plan] 8 layers cannot be dealt to 3 stages with 1 chunks each"},
               [&] { priced(3, 1, 8); });
  expect_usage({"[plan] a pipeline of 1 microbatch", "at least 2"}, [&] { priced(4, 1, 1); });
}

TEST_CASE("simulate: what cannot be a pipeline is refused", "[plan][errors]") {
  const auto priced = [](int64_t layers) {
    return price_pipeline(parted_model(layers), Mesh::parse("data:2"), Layout::parse("batch:data"),
                          in_parts(4), 2, 1, a100());
  };
  expect_usage(
      {"[plan] gpt: a pipeline deals layers to stages, and this model has 1", "at least 2"},
      [&] { priced(1); });
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
