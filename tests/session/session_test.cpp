// A Session run again: nothing of an earlier run is left in a kernel, and layouts train alike.
#include "support/catch.h"
#include "support/gpt_run.h"

using namespace tessera;

TEST_CASE("a broadcast operand is read afresh in every run, whatever rows a block has") {
  // Blocks hold several rows of 96 to 200 elements; the last block of 5 or 7 rows holds fewer.
  for (int64_t rows : {3, 5, 7}) {
    for (int64_t cols : {96, 192, 200}) {
      Graph g;
      const Dim row("row", rows), col("col", cols);
      Tensor a = g.input("a", {row, col}, DType::float64), b = g.input("b", {col}, DType::float64);
      Tensor y = (a + b).named("y");
      Cluster cluster = Cluster::threads(1);
      Session session(g, cluster, {Mesh::parse("one:1"), {}, {{"run", {y}, false}}});
      for (int run = 0; run < 3; ++run) {
        Array av(DType::float64, {"row", "col"}, {rows, cols}), bv(DType::float64, {"col"}, {cols});
        for (int64_t i = 0; i < av.elements(); ++i) av.data<double>()[i] = 1000.0 * run + i;
        for (int64_t i = 0; i < cols; ++i) bv.data<double>()[i] = 0.001 * i + run;
        session.feed("a", av);
        session.feed("b", bv);
        session.run("run");
        const Array result = session.fetch("y");
        for (int64_t i = 0; i < av.elements(); ++i) {
          REQUIRE(result.at(i) == av.at(i) + bv.at(i % cols));
        }
      }
    }
  }
}

TEST_CASE("steps of training are the same with anything split") {
  const auto losses = [](const char* mesh_text, const char* layout) {
    const Mesh mesh = Mesh::parse(mesh_text);
    Cluster cluster = Cluster::threads(mesh.size());
    return test::train_small_gpt(cluster, mesh, layout, DType::float64, 4).losses;
  };
  const std::vector<double> one = losses("one:1", "");
  CHECK(one.back() < one.front());
  for (const char* layout : {"batch:a", "length:a", "heads,ff,vocab:a", "d_model:a"}) {
    INFO(layout);
    const std::vector<double> two = losses("a:2", layout);
    for (size_t i = 0; i < one.size(); ++i) CHECK(two[i] == Approx(one[i]).epsilon(1e-11));
  }
}

namespace TESSERA_FILE {

/// Losses of a mixture of experts without a router, whose weights and hidden values have two dims
/// on one axis.
std::vector<double> losses_of_experts(const char* mesh_text, const char* layout) {
  Graph g;
  const Dim batch("batch", 6), experts("experts", 4), d("d_model", 6), ff("ff", 8);
  Tensor x = g.input("x", {batch, d}, DType::float64);
  const auto start = [](Graph& graph, const Shape& shape, DType dtype) {
    return random_normal(graph, shape, 0, 0.5, dtype);
  };
  Tensor up = g.parameter("up", {experts, d, ff}, start, DType::float64).prefer("experts");
  Tensor down = g.parameter("down", {experts, ff, d}, start, DType::float64).prefer("experts");
  Tensor hidden = gelu(einsum({x, up}, {batch, experts, ff}).prefer("experts").prefer("ff"));
  Tensor y = einsum({hidden.prefer("experts"), down}, {batch, d});
  Tensor loss = mean_all(square(y - x)).named("loss");
  minimize(loss, constant(g, 0.02, DType::float64), adam({.weight_decay = 0.1}), {.clip = 1});
  const Mesh mesh = Mesh::parse(mesh_text);
  Cluster cluster = Cluster::threads(mesh.size());
  Session session(g, cluster, {mesh, Layout::parse(layout), {{"train", {loss}, true}}});
  Array values(DType::float64, {"batch", "d_model"}, {6, 6});
  for (int64_t i = 0; i < values.elements(); ++i) values.data<double>()[i] = std::sin(0.7 * i);
  std::vector<double> losses;
  for (int step = 0; step < 4; ++step) {
    session.feed("x", values);
    session.run("train");
    losses.push_back(session.fetch("loss").at(0));
  }
  return losses;
}

TEST_CASE("a parameter's preference is its initializer's, its gradient's and its state's") {
  const std::vector<double> one = losses_of_experts("one:1", "");
  CHECK(one.back() < one.front());
  for (const char* layout : {"experts,ff:a", "experts,ff:a; @state d_model:b", "experts,ff:a+b",
                             "batch:b; experts,ff:a; @params d_model:b"}) {
    INFO(layout);
    const std::vector<double> many = losses_of_experts("a:2;b:2", layout);
    for (size_t i = 0; i < one.size(); ++i) CHECK(many[i] == Approx(one[i]).epsilon(1e-11));
  }
}

TEST_CASE("scales and biases of any rank do not decay") {
  Graph g;
  const Dim heads("heads", 2), d("d_head", 3);
  Tensor bias = g.parameter("bias", {heads, d}, nn::ones(), DType::float64);
  Tensor weight = g.parameter("weight", {heads, d}, nn::normal(1), DType::float64);
  Tensor loss = sum_all((bias + weight) * 0.0).named("loss");
  minimize(loss, constant(g, 0.5, DType::float64), sgd(0.1));
  Cluster cluster = Cluster::threads(1);
  Session session(g, cluster, {Mesh::parse("one:1"), {}, {{"train", {loss}, true}}});
  const Array before = session.fetch("weight");
  session.run("train");
  const Array after = session.fetch("weight"), kept = session.fetch("bias");
  for (int64_t i = 0; i < 6; ++i) {
    CHECK(kept.at(i) == 1.0);
    CHECK(after.at(i) == Approx(before.at(i) * 0.95).epsilon(1e-12));
  }
}

TEST_CASE("attention of a negative scale is that of negated queries", "[fast]") {
  Graph g;
  const Dim heads("heads", 2), length("length", 9), memory("memory_length", 9), d("d_head", 4);
  const auto start = [](Graph& graph, const Shape& shape, DType dtype) {
    return random_normal(graph, shape, 0, 1, dtype);
  };
  Tensor q = g.parameter("q", {heads, length, d}, start),
         k = g.parameter("k", {heads, memory, d}, start),
         v = g.parameter("v", {heads, memory, d}, start);
  std::vector<Tensor> results;
  for (double sign : {-1.0, 1.0}) {
    const Tensor y = attention(sign < 0 ? q : -q, k, v, {}, {.causal = true, .scale = 0.7 * sign});
    results.push_back(y);
    for (Tensor grad : gradients(sum_all(square(y)), {q, k, v})) results.push_back(grad);
  }
  Cluster cluster = Cluster::threads(1);
  Session session(g, cluster, {Mesh::parse("one:1"), {}, {{"run", results, false}}});
  session.run("run");
  for (size_t i = 0; i < 4; ++i) {
    const Array a = session.fetch(results[i].name()), b = session.fetch(results[i + 4].name());
    for (int64_t e = 0; e < a.elements(); ++e)
      REQUIRE(std::abs(a.at(e) - b.at(e)) <= 1e-5 * (1 + std::abs(b.at(e))));
  }
}

TEST_CASE("heads that share keys round the sum of their gradients once") {
  Graph g;
  const Dim heads("heads", 64), length("length", 20), memory("memory_length", 20), d("d_head", 8);
  const auto start = [](Graph& graph, const Shape& shape, DType dtype) {
    return random_normal(graph, shape, 0, 1, dtype);
  };
  const std::vector<Tensor> narrow = {g.parameter("q", {heads, length, d}, start, DType::bfloat16),
                                      g.parameter("k", {memory, d}, start, DType::bfloat16),
                                      g.parameter("v", {memory, d}, start, DType::bfloat16)};
  Tensor weight = random_normal(g, {heads, length, d}, 0, 1, DType::bfloat16);
  std::vector<Tensor> results;
  for (DType dtype : {DType::bfloat16, DType::float32}) {
    std::vector<Tensor> x;
    for (Tensor t : narrow) x.push_back(dtype == DType::bfloat16 ? t : cast(t, dtype));
    Tensor scale = dtype == DType::bfloat16 ? weight : cast(weight, dtype);
    Tensor loss = sum_all(attention(x[0], x[1], x[2], {}, {.causal = true}) * scale);
    for (Tensor grad : gradients(loss, {x[1], x[2]})) results.push_back(grad);
  }
  Cluster cluster = Cluster::threads(1);
  Session session(g, cluster, {Mesh::parse("one:1"), {}, {{"run", results, false}}});
  session.run("run");
  for (size_t i = 0; i < 2; ++i) {
    const Array rounded = session.fetch(results[i].name()),
                exact = session.fetch(results[i + 2].name());
    double error = 0, norm = 0;
    for (int64_t e = 0; e < exact.elements(); ++e) {
      const double want = exact.at(e), off = std::abs(rounded.at(e) - want);
      error += off * off;
      norm += want * want;
      // Into the keys' gradients goes the rounded result as well.
      if (i == 1) REQUIRE(off <= std::abs(want) / 256 + 1e-4);
    }
    CHECK(std::sqrt(error) <= std::sqrt(norm) / 256);
  }
}

}  // namespace TESSERA_FILE
