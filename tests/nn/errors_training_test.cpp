// The messages of optimizers and of routers.
#include "support/expect_error.h"
#include "tessera/loops.h"
#include "tessera/tessera.h"

using namespace tessera;
using test::expect_usage;

namespace TESSERA_FILE {

const Dim kA("a", 4), kB("b", 6);
const char* kHere = "(errors_training_test.cpp:";

struct Model {
  Graph g;
  Tensor w = g.parameter("layer.w", {kA, kB}, nn::ones());
  Tensor lr = constant(g, 0.1);
  Tensor loss = sum_all(square(w));
  void train(const Optimizer& optimizer, const MinimizeOptions& options = {}) const {
    minimize(loss, lr, optimizer, options);
  }
};

TEST_CASE("a loss is floating and depends on a parameter", "[errors]") {
  const Model m;
  Tensor whole = cast(m.loss, DType::int32).named("whole");
  const auto of = [&](const Loss& loss) { minimize(loss, m.lr, sgd()); };
  expect_usage({"[minimize] the loss 'whole' (errors_training_test.cpp:",
                ") is int32, which has "
                "neither a mean nor a gradient; cast() it",
                kHere},
               [&] { of(whole); });
  // The learning rate is of the loss's dtype here, as on the command line.
  expect_usage({"[minimize] the loss 'whole'"},
               [&] { minimize(whole, cast(m.lr, DType::int32), sgd()); });
  expect_usage({"[minimize] metric 'hits', 'whole' (errors_training_test.cpp:", "is int32", kHere},
               [&] {
                 of({m.loss, {}, {{"hits", whole}}});
               });
  Graph& g = const_cast<Graph&>(m.g);
  Tensor fed = mean_all(g.input("x", {kA}, DType::float32)).named("fed");
  expect_usage({"[minimize] the loss 'fed' (errors_training_test.cpp:",
                "depends on none of the 1 "
                "parameters, such as 'layer.w', so nothing would be trained",
                "stop_gradient()", kHere},
               [&] { of(fed); });
  expect_usage({"depends on none of the 1 parameters"}, [&] { of(sum_all(stop_gradient(m.w))); });
  expect_usage({"[minimize_in_microbatches] the loss", "depends on none"}, [&] {
    minimize_in_microbatches(
        g, "a", 2, [&] { return Loss(mean_all(g.input("z", {Dim("a", 2)}, DType::float32))); },
        m.lr, sgd());
  });
}

TEST_CASE("names that an optimizer's options give must be there", "[errors]") {
  expect_usage(
      {"[adam] no_decay: no parameter is named like 'layr.w'; did you mean 'layer.w'?", kHere},
      [] { Model().train(adam({.weight_decay = 0.1, .no_decay = {"layr.w"}})); });
  expect_usage({"[adafactor] unscaled: no parameter is named like 'v'", kHere},
               [] { Model().train(adafactor({.unscaled = {"v"}})); });
  expect_usage({"[adafactor] stacked: no parameter has a dim 'layers'; known: a, b", kHere},
               [] { Model().train(adafactor({.stacked = {"layers"}})); });
  expect_usage({"[with_rates] glob: no parameter is named like 'layr*'", kHere}, [] {
    Model().train(with_rates(sgd(), {{"layr*", 2}}));
  });
  const Model m;
  m.train(adam({.weight_decay = 0.1, .no_decay = {"*.w"}}));
  expect_usage({"'optimizer.step' is declared at errors_training_test.cpp:"},
               [&] { m.train(sgd()); });
}

TEST_CASE("options of optimizers out of range", "[errors]") {
  expect_usage({"[adam] beta1 is 1.5; it must be in [0, 1)", kHere}, [] { adam({.beta1 = 1.5}); });
  expect_usage({"[adam] beta2 is 1; it must be in [0, 1)", kHere}, [] { adam({.beta2 = 1}); });
  expect_usage({"[adam] eps is -1; it must be at least 0", kHere}, [] { adam({.eps = -1}); });
  expect_usage({"[lamb] beta2 is 1;", kHere}, [] { lamb({.beta2 = 1}); });
  expect_usage({"[lion] beta1 is -1;", kHere}, [] { lion({.beta1 = -1}); });
  expect_usage({"[momentum] mu is -1; it must be in [0, 1)", kHere}, [] { momentum(-1); });
  expect_usage({"[adafactor] clip is -1; it must be at least 0", kHere},
               [] { adafactor({.clip = -1}); });
  expect_usage({"[adafactor] decay_exponent is -1;", kHere},
               [] { adafactor({.decay_exponent = -1}); });
}

TEST_CASE("a step takes a floating scalar as its rate", "[errors]") {
  Model m;
  expect_usage({"[minimize] clip -1 is negative; 0 is no clipping", kHere},
               [&] { m.train(sgd(), {.clip = -1}); });
  m.lr = constant(m.g, 1, DType::int32);
  expect_usage({"[minimize] the learning rate is int32 []; it must be a floating scalar", kHere},
               [&] { m.train(sgd()); });
  m.lr = constant(m.g, 1, DType::float32, {kA});
  expect_usage({"[minimize] the learning rate is float32 [a=4]; it must be a floating scalar"},
               [&] { m.train(sgd()); });
  expect_usage({"[minimize_in_microbatches] the learning rate is float32 [a=4]", kHere}, [&] {
    minimize_in_microbatches(
        m.g, "a", 2, [&] { return m.loss; }, m.lr, sgd());
  });
}

TEST_CASE("outputs and guards of a function are what the graph has", "[errors]") {
  Graph g, other;
  const Tensor x = g.input("x", {Dim("n", 4)}, DType::float32), y = (x * 2.0).named("y"),
               loss = sum_all(y).named("loss"), foreign = constant(other, 42).named("other");
  Cluster cluster = Cluster::threads(1);
  const auto compile = [&](std::vector<Tensor> outputs, std::vector<std::string> guards = {}) {
    CompileOptions options{Mesh::parse("a:1"), {}, {{"f", std::move(outputs)}}};
    options.guards = std::move(guards);
    Session(g, cluster, options);
  };
  expect_usage({"output 0 of function 'f' is empty"}, [&] { compile({Tensor()}); });
  expect_usage({"output 1 of function 'f' belongs to another graph"}, [&] {
    compile({y, foreign});
  });
  expect_usage({"no function has the output 'losss', which is to be a guard", "'loss'"},
               [&] { compile({loss}, {"losss"}); });
  expect_usage({"guard 'y' has the dims n", "an output of one element"}, [&] {
    compile({loss, y}, {"y"});
  });
  compile({loss, y}, {"loss"});
}

TEST_CASE("microbatches cut something", "[errors]") {
  for (const bool unroll : {false, true}) {
    Graph g;
    const Tensor w = g.parameter("w", {Dim("batch", 4)}, nn::ones());
    LoopOptions options;
    options.unroll = unroll;
    expect_usage({"[sum_over_microbatches] no input that a microbatch reads has the dim 'bathc'",
                  "'batch'", "every one would be the whole batch", "(errors_training_test.cpp:"},
                 [&] {
                   sum_over_microbatches(
                       g, "bathc", 2,
                       [&]() -> std::vector<Tensor> {
                         return {sum_all(w * g.input("y", {Dim("batch", 4)}, DType::float32))};
                       },
                       options);
                 });
    CHECK(sum_over_microbatches(
              g, "none", 2, [&]() -> std::vector<Tensor> { return {sum_all(w)}; }, options)
              .size() == 1);  // nothing is fed
  }
}

TEST_CASE("routers refuse what they would misunderstand", "[errors]") {
  Graph g;
  const Dim length("length", 8), experts("experts", 4), zz("zz", 3);
  const Tensor logits = g.input("logits", {Dim("batch", 2), length, experts}, DType::float32);
  const auto fails = [&](const std::vector<std::string>& parts, const nn::RoutingOptions& o,
                         Tensor x, const std::string& tokens = "length") {
    std::vector<std::string> all = parts;
    all.insert(all.end(), {"[route]", kHere});
    expect_usage(all, [&] { nn::route(x, tokens, "experts", o); });
  };
  fails({"the logits are int32; they must be floating"}, {}, cast(logits, DType::int32));
  fails({"dim 'experts' is both the tokens and the experts"}, {}, logits, "experts");
  fails({"no dim 'tokens'"}, {}, logits, "tokens");
  fails({"2 capacity dims; an expert has one"}, {.capacity = {Dim("c", 2), Dim("d", 2)}}, logits);
  fails({"the capacity is dim 'experts', which the logits [batch=2, length=8, experts=4] have"},
        {.capacity = {Dim("experts", 4)}}, logits);
  fails({"least_capacity -4; neither is negative"}, {.least_capacity = -4}, logits);
  const Tensor foreign = g.input("foreign", {length, zz}, DType::float32),
               of_experts = g.input("of_experts", {length, experts}, DType::float32);
  fails({"the importance [length=8, zz=3] has the dim 'zz'; it has dims of [batch=2, length=8]"},
        {.importance = foreign}, logits);
  fails({"has the dim 'experts'"}, {.importance = of_experts}, logits);
}

TEST_CASE("an overflow is an error for a run that computes anything of where tokens go",
          "[errors]") {
  for (const std::string part : {"dispatch", "combine", "dropped", "load"}) {
    INFO(part);
    Graph g;
    const Dim length("length", 8), experts("experts", 4);
    const Tensor logits = g.input("logits", {length, experts}, DType::float32);
    const nn::Routing r = nn::route(
        logits, "length", "experts",
        {.choices = 1, .capacity = {Dim("capacity", 1)}, .overflow = nn::Overflow::error});
    const Tensor wanted = part == "dispatch"  ? r.dispatch
                          : part == "combine" ? r.combine
                          : part == "dropped" ? r.dropped
                                              : r.load;
    Cluster ranks = Cluster::threads(1);
    Session s(g, ranks, {Mesh::parse("x:1"), {}, {{"run", {wanted}, false}}});
    s.feed("logits", Array(DType::float32, {"length", "experts"}, {8, 4}));
    expect_usage({"more tokens than the 1 places 'capacity'", "errors_training_test.cpp:"},
                 [&] { s.run("run"); });
  }
}

}  // namespace TESSERA_FILE
