// A batch in microbatches: a step in any number of parts is that of the whole batch, dropout
// included.
#include <cmath>
#include <map>

#include "base/fail.h"
#include "support/catch.h"
#include "support/check_equal.h"
#include "support/expect_error.h"
#include "support/gpt_run.h"
#include "tessera/explain.h"

namespace tessera::test {

namespace TESSERA_FILE {

constexpr int64_t kBatch = 12;

struct Built {
  Graph graph;
  Minimized step;
};

void build(Built& built, int64_t parts, double dropout = 0.2) {
  nn::GptOptions o = small_gpt(DType::float64);
  o.batch = kBatch / parts;
  o.dropout = dropout;
  Graph& g = built.graph;
  Tensor lr = constant(g, 0.02, DType::float64);
  built.step = minimize_in_microbatches(g, "batch", parts, [&] { return nn::gpt(g, o).loss; }, lr,
                                        adam(), {.clip = 1});
}

Array tokens(int64_t shift) {
  Array a(DType::int32, {"batch", "length"}, {kBatch, 6});
  for (int64_t i = 0; i < a.elements(); ++i)
    a.data<int32_t>()[i] = static_cast<int32_t>((i * i + i / 6 * 5 + shift) % 17);
  return a;
}

std::map<std::string, Array> train(int64_t parts, const char* mesh, const char* layout) {
  Built built;
  build(built, parts);
  Cluster cluster = Cluster::threads(Mesh::parse(mesh).size());
  Session session(built.graph, cluster,
                  {Mesh::parse(mesh), Layout::parse(layout), {{"train", {built.step.loss}, true}}});
  std::map<std::string, Array> values;
  for (int step = 0; step < 2; ++step) {
    session.feed("inputs", tokens(0));
    session.feed("targets", tokens(1));
    session.run("train");
    values["loss" + std::to_string(step)] = session.fetch(built.step.loss.name());
  }
  for (const std::string& name : session.program().stored_names())
    values[name] = session.fetch(name);
  return values;
}

TEST_CASE("a step in parts is a step of the whole batch, on one rank or several", "[parts]") {
  const auto whole = train(1, "x:1", "");
  CHECK(whole.at("loss1").at(0) < whole.at("loss0").at(0));
  for (int64_t parts : {2, 3, 12}) {
    INFO(parts << " parts");
    check_equal(whole, train(parts, "x:1", ""));
  }
  check_equal(whole, train(2, "x:3", "batch:x"));
  check_equal(whole, train(4, "x:2", "batch:x"));  // 3 examples a part on 2 ranks
  check_equal(whole, train(3, "x:2;y:2", "batch:x;heads,ff,vocab:y;@state d_model:x"));
}

TEST_CASE("gradients of parts are combined over ranks once, and nothing is sent of the batch",
          "[parts]") {
  const auto of = [](int64_t parts) {
    Built built;
    build(built, parts, 0);
    const Explanation e = explain(
        built.graph,
        {Mesh::parse("x:2"), Layout::parse("batch:x"), {{"train", {built.step.loss}, true}}});
    REQUIRE(e.functions.back().name == "train");
    return e.functions.back();
  };
  const FunctionReport whole = of(1), parts = of(3);
  std::map<std::string, int> count;
  for (const CollectiveReport& c : parts.collectives) ++count[c.kind];
  CHECK(count["all_reduce"] == static_cast<int>(parts.collectives.size()));
  CHECK(parts.collectives.size() == whole.collectives.size());
  CHECK(parts.bytes == whole.bytes);
}

TEST_CASE("the activations of one part are in memory at a time", "[parts]") {
  const auto peak = [](int64_t parts) {
    nn::MlpOptions o;
    o.batch = 256 / parts;
    o.rows = o.cols = 4;
    o.hidden = 16;
    Graph g;
    const Minimized step = minimize_in_microbatches(
        g, "batch", parts, [&] { return nn::mlp(g, o).loss; }, constant(g, 0.1), sgd());
    return explain(g, {Mesh::parse("x:1"), {}, {{"train", {step.loss}, true}}}).memory.transient;
  };
  const int64_t whole = peak(1), quarter = peak(4);
  INFO(whole << " bytes whole, " << quarter << " in four parts");
  CHECK(quarter < whole / 2);
}

/// Of 12 examples of 5 words, the loss over the words that count: of the first `words` examples all
/// but the last one, of the others none.
struct Weighted {
  Graph graph;
  Minimized step;

  Weighted(int64_t parts, bool unroll, DType dtype = DType::float64) {
    const Dim batch("batch", kBatch / parts), words("words", 5), d("d", 4);
    Graph& g = graph;
    const auto loss = [&]() -> Loss {
      Tensor x = g.input("x", {batch, words, d}, dtype),
             mask = g.input("mask", {batch, words}, DType::float32);
      Tensor w = g.parameter("w", {d}, nn::normal(1), dtype), at_w = reduce_sum(x * w, "d");
      Tensor counted = cast(mask, dtype), right = cast(at_w > 0.0, dtype) * counted;
      return {sum_all(square(at_w - 1.0) * counted),
              sum_all(mask),
              {{"accuracy", sum_all(right), sum_all(counted)}, {"plain", mean_all(at_w)}}};
    };
    MinimizeOptions options{.clip = 1};
    options.loop.unroll = unroll;
    Tensor lr = constant(g, 0.1, DType::float64);
    step = parts == 1 ? minimize(loss(), lr, adam(), options)
                      : minimize_in_microbatches(g, "batch", parts, loss, lr, adam(), options);
  }

  /// Two steps in which the first `counted` examples count.
  std::map<std::string, Array> run(const char* mesh, const char* layout, int64_t counted) {
    Cluster cluster = Cluster::threads(Mesh::parse(mesh).size());
    std::vector<Tensor> outputs = {step.loss, step.gradient_norm};
    for (const Metric& m : step.metrics) outputs.push_back(m.value);
    Session session(graph, cluster,
                    {Mesh::parse(mesh), Layout::parse(layout), {{"train", outputs, true}}});
    Array x(DType::float64, {"batch", "words", "d"}, {kBatch, 5, 4});
    for (int64_t i = 0; i < x.elements(); ++i)
      x.data<double>()[i] = std::sin(1.3 * static_cast<double>(i));
    Array mask(DType::float32, {"batch", "words"}, {kBatch, 5});
    for (int64_t i = 0; i < mask.elements(); ++i)
      mask.data<float>()[i] = i / 5 < counted && i % 5 <= i / 5 ? 1.0f : 0.0f;
    std::map<std::string, Array> values;
    for (int n = 0; n < 2; ++n) {
      session.feed("x", x);
      session.feed("mask", mask);
      session.run("train");
      const std::string suffix = std::to_string(n);
      values["loss" + suffix] = session.fetch(step.loss.name());
      values["norm" + suffix] = session.fetch(step.gradient_norm.name());
      for (const Metric& m : step.metrics) values[m.name + suffix] = session.fetch(m.value.name());
    }
    values["w"] = session.fetch("w");
    return values;
  }
};

TEST_CASE("a loss with a weight is that of the whole batch, however its weight falls into parts",
          "[parts]") {
  const auto whole = Weighted(1, false).run("x:1", "", 7);
  CHECK(whole.at("loss1").at(0) < whole.at("loss0").at(0));
  // 1 + 2 + 3 + 4 + 5 + 5 + 5 words count: the accuracy is a share of them.
  const double right = whole.at("accuracy0").at(0) * 25;
  CHECK(right == Approx(std::round(right)));
  CHECK(right > 0);
  for (int64_t parts : {2, 3, 12}) {  // of 12 parts, 5 have no word that counts
    for (const bool unroll : {false, true}) {
      INFO(parts << " parts" << (unroll ? ", unrolled" : ""));
      check_equal(whole, Weighted(parts, unroll).run("x:1", "", 7));
    }
  }
  check_equal(whole, Weighted(1, false).run("x:4", "batch:x", 7));
  check_equal(whole, Weighted(2, false).run("x:2;y:2", "batch:x;d:y", 7));
}

TEST_CASE("a batch in which nothing counts has no loss and no gradient", "[parts]") {
  for (int64_t parts : {1, 3}) {
    const auto values = Weighted(parts, false).run("x:2", "batch:x", 0);
    for (const char* name : {"loss0", "norm0", "accuracy0", "loss1"}) {
      INFO(name << ", " << parts << " parts");
      CHECK(values.at(name).at(0) == 0);
    }
    CHECK(values.at("plain0").at(0) != 0);
  }
}

TEST_CASE("a loss with a weight: what is wrong", "[parts]") {
  Graph g;
  const Shape row{Dim("d", 4)};
  Tensor w = g.parameter("w", row, nn::ones()), sum = sum_all(w), one = constant(g, 1);
  const auto wrong = [&](const Loss& loss, const std::vector<std::string>& said) {
    expect_usage(said, [&] { minimize(loss, 0.1, sgd()); });
  };
  wrong({w, one}, {"[minimize] the loss has a weight, and is [d=4]; it must be a scalar"});
  wrong({sum, w}, {"[minimize] the weight of the loss is [d=4]; it must be a scalar"});
  wrong({sum, {}, {{"share", w}}}, {"[minimize] metric 'share' is [d=4]; it must be a scalar"});
  wrong({sum, {}, {{"share", one, w}}}, {"the weight of metric 'share' is [d=4]"});
  wrong({sum, {}, {{"share", {}}}}, {"[minimize] metric 'share' has no value"});
  wrong({sum, {}, {{"share", one}, {"share", one}}}, {"two metrics are named 'share'"});
}

TEST_CASE("outputs of microbatches with the dim of the batch come back whole", "[parts]") {
  constexpr int64_t parts = 3, batch = 12, width = 5;
  const auto run = [&](int64_t count, bool unroll, const char* mesh, const char* layout) {
    Graph g;
    const Dim examples("batch", batch / count), in("in", width), out("out", 4);
    const auto logits_of = [&](const std::string& name) {
      Tensor x = g.input(name, {examples, in}, DType::float64);
      Tensor w = g.parameter(name + ".w", {in, out}, nn::normal(0.5), DType::float64);
      return einsum({x, w}, {out, examples});
    };
    const LoopOptions loop{unroll};
    const std::vector<Tensor> made = sum_over_microbatches(
        g, "batch", count,
        [&]() -> std::vector<Tensor> {
          const Tensor logits = logits_of("x");
          return {sum_all(square(logits)), logits, reduce_sum(logits, "batch"),
                  argmax(logits, "out")};
        },
        loop);
    REQUIRE(made[1].shape() == Shape{out, Dim("batch", batch)});
    const Minimized step = minimize_in_microbatches(
        g, "batch", count,
        [&]() -> Loss {
          const Tensor logits = logits_of("y");
          return {mean_all(square(logits)), {}, {}, {logits, argmax(logits, "out")}};
        },
        constant(g, 0.1, DType::float64), sgd(), {.loop = loop});
    REQUIRE(step.outputs.size() == 2);
    std::vector<Tensor> all = made;
    all.insert(all.end(), step.outputs.begin(), step.outputs.end());
    for (size_t i = 0; i < all.size(); ++i) all[i] = all[i].uniquely_named(fmt::format("r{}", i));
    Cluster cluster = Cluster::threads(Mesh::parse(mesh).size());
    Session session(g, cluster, {Mesh::parse(mesh), Layout::parse(layout), {{"f", all, true}}});
    Array x(DType::float64, {"batch", "in"}, {batch, width});
    for (int64_t i = 0; i < x.elements(); ++i) x.data<double>()[i] = std::sin(1.3 * double(i * i));
    session.feed("x", x);
    session.feed("y", x);
    session.run("f");
    std::map<std::string, Array> values;
    for (const Tensor& t : all) values[t.name()] = session.fetch(t.name());
    values["y.w"] = session.fetch("y.w");
    return values;
  };
  const auto whole = run(1, false, "a:1", "");
  for (const bool unroll : {false, true}) {
    for (const auto& [mesh, layout] :
         std::vector<std::pair<const char*, const char*>>{{"a:1", ""},
                                                          {"a:2", "batch:a"},
                                                          {"a:3", "batch:a"},
                                                          {"a:2;b:2", "batch:a;out:b"},
                                                          {"a:2", "in:a"}}) {
      INFO(unroll << " " << mesh << " " << layout);
      check_equal(whole, run(parts, unroll, mesh, layout));
    }
  }
}

TEST_CASE("an eager graph returns the outputs of microbatches whole", "[parts]") {
  Graph g({.eager = true});
  Array x(DType::float32, {"batch"}, {6});
  for (int64_t i = 0; i < 6; ++i) x.data<float>()[i] = static_cast<float>(i);
  g.feed("x", x);
  const std::vector<Tensor> made =
      sum_over_microbatches(g, "batch", 3, [&]() -> std::vector<Tensor> {
        const Tensor part = g.input("x", {Dim("batch", 2)}, DType::float32);
        return {part * 2.0, sum_all(part)};
      });
  for (int64_t i = 0; i < 6; ++i) CHECK(g.fetch(made[0]).at(i) == 2.0 * static_cast<double>(i));
  CHECK(g.fetch(made[1]).at(0) == 15);
}

TEST_CASE("outputs of microbatches: what is wrong", "[parts][errors]") {
  const char* here = "(microbatches_test.cpp:";
  const Dim batch("batch", 4);
  const auto made_of = [&](const std::function<IterationResults(Tensor)>& results) {
    Graph g;
    over_microbatches(g, "batch", 2,
                      [&] { return results(g.input("x", {batch}, DType::float32)); });
  };
  Graph g;
  expect_usage({"[over_microbatches] a microbatch makes 1 carries", "use scan()", here}, [&] {
    made_of([](Tensor x) { return IterationResults{{x}, {}, {}}; });
  });
  expect_usage(
      {"[over_microbatches] the output 'sum' [] has no dim 'batch'", "among the sums", here}, [&] {
        made_of([](Tensor x) {
          return IterationResults{{}, {sum_all(x).uniquely_named("sum")}, {}};
        });
      });
  expect_usage({"[over_microbatches] a microbatch's output 0 is an empty Tensor", here}, [&] {
    made_of([](Tensor) { return IterationResults{{}, {Tensor()}, {}}; });
  });
  expect_usage({"[over_microbatches] 0 microbatches of 'batch'", here},
               [&] { over_microbatches(g, "batch", 0, [] { return IterationResults{}; }); });
  expect_usage({"[over_microbatches] what builds a microbatch is an empty function", here},
               [&] { over_microbatches(g, "batch", 2, nullptr); });
  int call = 0;
  expect_usage({"microbatch 1 makes 1 tensors (0 with the dim 'batch'), microbatch 0 1 (1)", here},
               [&] {
                 sum_over_microbatches(g, "batch", 2,
                                       [&]() -> std::vector<Tensor> {
                                         Tensor x = g.input("z", {batch}, DType::float32);
                                         return {call++ == 0 ? x : sum_all(x)};
                                       },
                                       {.unroll = true});
               });
}

TEST_CASE("microbatches: what is wrong", "[parts]") {
  Graph g;
  const Dim batch("batch", 4);
  expect_usage({"[minimize_in_microbatches] 0 microbatches of 'batch'"}, [&] {
    minimize_in_microbatches(
        g, "batch", 0, [&] { return Tensor(); }, constant(g, 1), sgd());
  });
  const auto with = [&](const std::function<Tensor(Graph&, int)>& loss) {
    Graph graph;
    int call = 0;
    minimize_in_microbatches(graph, "batch", 2, [&] { return loss(graph, call++); },
                             constant(graph, 1), sgd(), {.loop = {.unroll = true}});
  };
  expect_usage({"the loss of a microbatch is [batch=4]"}, [&] {
    with([&](Graph& graph, int) { return graph.parameter("w", Shape{batch}, nn::ones()); });
  });
  expect_usage({"microbatch 1 of the batch has 'w1' 1 times", "alike"}, [&] {
    with([&](Graph& graph, int call) {
      return sum_all(graph.parameter("w" + std::to_string(call), Shape{batch}, nn::ones()));
    });
  });
  expect_usage({"'w'", "[batch=4]", "[batch=5]"}, [&] {
    with([&](Graph& graph, int call) {
      return sum_all(graph.parameter("w", Shape{Dim("batch", 4 + call)}, nn::ones()));
    });
  });
  expect_usage({"input 'x'", "'batch' is bounded"}, [&] {
    with([&](Graph& graph, int) {
      Tensor x = graph.input("x", Shape{Dim::bounded("batch", 4)}, DType::float32);
      return sum_all(x * graph.parameter("w", {}, nn::ones()));
    });
  });
  expect_usage({"[MicrobatchScope] microbatch 2 of 2"},
               [&] { MicrobatchScope scope(g, "batch", 2, 2); });
  expect_usage({"cannot be split into microbatches"}, [&] {
    MicrobatchScope outer(g, "batch", 2, 0);
    MicrobatchScope inner(g, "batch", 2, 0);
  });
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
