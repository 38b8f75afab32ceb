// A batch in microbatches: a step in any number of parts is that of the whole batch, dropout
// included.
#include <cmath>
#include <map>

#include "support/catch.h"
#include "support/expect_error.h"
#include "support/gpt_run.h"
#include "tessera/explain.h"

namespace tessera::test {

namespace {

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
  for (const std::string& name : session.stored_names()) values[name] = session.fetch(name);
  return values;
}

void check_equal(const std::map<std::string, Array>& want,
                 const std::map<std::string, Array>& got) {
  REQUIRE(want.size() == got.size());
  for (const auto& [name, value] : want) {
    for (int64_t i = 0; i < value.elements(); ++i) {
      INFO(name << " element " << i);
      REQUIRE(got.at(name).at(i) == Approx(value.at(i)).epsilon(1e-9).margin(1e-10));
    }
  }
}

}  // namespace

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

}  // namespace tessera::test
