// Initializers and layers beyond what a row of op_cases can say.
#include <algorithm>
#include <cmath>

#include "support/catch.h"
#include "support/expect_error.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

struct Named {
  const char* name;
  Initializer init;
  double variance;
};

const Dim in("in", 60), out("out", 70);

std::vector<Named> initializers() {
  using Scaling = nn::VarianceScaling;
  const double cut = 0.77413;  // variance of a normal that is cut at two standard deviations
  return {
      {"zeros", nn::zeros(), 0},
      {"filled_with", nn::filled_with(3), 0},
      {"normal", nn::normal(0.5), 0.25},
      {"truncated", nn::truncated(0.5), 0.25 * cut},
      {"uniform", nn::uniform(-1, 2), 9.0 / 12},
      {"scaled_normal", nn::scaled_normal({"in"}, 2), 4 * cut / 60},
      {"glorot_normal", nn::glorot_normal({"in"}, {"out"}), 2.0 / 130},
      {"glorot_uniform", nn::glorot_uniform({"in"}, {"out"}), 2.0 / 130},
      {"he_normal", nn::he_normal({"in"}), 2.0 / 60},
      {"he_uniform", nn::he_uniform({"in"}), 2.0 / 60},
      {"fan_out",
       nn::variance_scaling({.in = {"in"}, .out = {"out"}, .scale = 3, .fan = Scaling::Fan::out}),
       3 * cut / 70}};
}

std::vector<Array> first_values(const char* mesh_text, const char* layout) {
  Graph g;
  Tensor loss;
  for (const Named& n : initializers()) {
    Tensor p = g.parameter(n.name, {in, out}, n.init);
    loss = loss.empty() ? sum_all(p) : loss + sum_all(p);
  }
  const Mesh mesh = Mesh::parse(mesh_text);
  Cluster cluster = Cluster::threads(mesh.size());
  Session session(g, cluster, {mesh, Layout::parse(layout), {{"run", {loss}, false}}});
  std::vector<Array> values;
  for (const Named& n : initializers()) values.push_back(session.fetch(n.name));
  return values;
}

TEST_CASE("initial values have the same bits under every layout, and the variance that they say") {
  const std::vector<Array> one = first_values("x:1", "");
  for (const char* layout : {"in:x", "out:x;in:y", "@params out:y+x"}) {
    INFO(layout);
    const std::vector<Array> many = first_values("x:3;y:2", layout);
    for (size_t i = 0; i < one.size(); ++i) {
      INFO(initializers()[i].name);
      for (int64_t e = 0; e < one[i].elements(); ++e)
        REQUIRE(many[i].data<float>()[e] == one[i].data<float>()[e]);
    }
  }
  for (size_t i = 0; i < one.size(); ++i) {
    INFO(initializers()[i].name);
    double sum = 0, squares = 0;
    const double n = static_cast<double>(one[i].elements());
    for (int64_t e = 0; e < one[i].elements(); ++e)
      sum += one[i].at(e), squares += one[i].at(e) * one[i].at(e);
    const double variance = squares / n - sum / n * sum / n;
    CHECK(variance == Approx(initializers()[i].variance).epsilon(0.08).margin(1e-9));
  }
}

TEST_CASE("the gradient behind clip_gradient has a bounded root mean square") {
  const auto squares = [](double limit) {
    Graph g;
    const Dim a("a", 6);
    Tensor x = g.parameter("x", Shape{a}, nn::normal(1), DType::float64);
    Tensor grad = gradients(
        sum_all(nn::clip_gradient(x, limit) * (iota(g, a, DType::float64) + 1.0)), {x})[0];
    Cluster cluster = Cluster::threads(2);
    Session session(g, cluster,
                    {Mesh::parse("x:2"), Layout::parse("a:x"), {{"run", {grad}, false}}});
    session.run("run");
    const Array value = session.fetch(grad.name());
    CHECK(value.at(5) / value.at(0) == Approx(6));
    double sum = 0;
    for (int64_t i = 0; i < 6; ++i) sum += value.at(i) * value.at(i);
    return std::sqrt(sum / 6);
  };
  CHECK(squares(0.5) == Approx(0.5));
  CHECK(squares(100) == Approx(std::sqrt(91.0 / 6)));
}

TEST_CASE("weights of attention that share a draw are dropped together") {
  const Dim heads("heads", 2), length("length", 5), memory("memory_length", 16),
      depth("d_head", 16);
  const auto dropped = [&](const std::vector<std::string>& shared, bool biased) {
    Graph g({.eager = true});
    // Even weights and values that are the unit matrix: the result is the weights.
    Tensor query = constant(g, 0, DType::float32, {heads, length, depth});
    Tensor key = constant(g, 1, DType::float32, {heads, memory, depth});
    Tensor value = cast(equal(iota(g, memory), iota(g, depth)), DType::float32);
    nn::BiasedOptions o;
    o.dropout = 0.5, o.dropout_shared = shared;
    if (biased) o.bias = constant(g, 1, DType::float32, {length});
    return g.fetch(nn::biased_attention(query, key, value, {}, o));
  };
  const auto repeats = [](const Array& x, int64_t after) {  // elements: 5 x 16 a head, 16 a query
    const float* at = x.data<float>();
    return std::equal(at, at + x.elements() - after, at + after);
  };
  for (const bool biased : {false, true}) {
    INFO(biased);
    const Array both = dropped({"length", "heads"}, biased),
                heads_alone = dropped({"heads"}, biased),
                queries_alone = dropped({"length"}, biased);
    CHECK(repeats(both, 16));
    CHECK(repeats(heads_alone, 80));
    CHECK_FALSE(repeats(heads_alone, 16));
    CHECK_FALSE(repeats(queries_alone, 80));
    for (const Array& x : {both, heads_alone, queries_alone}) {
      const auto times = [&](float w) {
        return std::count(x.data<float>(), x.data<float>() + x.elements(), w);
      };
      CHECK(times(0) > 0);
      CHECK(times(2.0F / 16) > 0);
      CHECK(times(0) + times(2.0F / 16) == x.elements());
    }
  }
}

TEST_CASE("layers say what is wrong with their options") {
  Graph g;
  const Dim length("length", 6), memory("memory_length", 6), model("model", 3);
  Tensor x = g.input("x", {length, model}, DType::float32);
  Tensor labels = g.input("labels", Shape{length}, DType::int32);
  expect_usage({"unknown function 'rellu'", "'relu'"}, [&] { nn::activate(x, "rellu"); });
  expect_usage({"[dense_product] 'd' has no activations"},
               [&] { nn::dense_product(x, "d", {"model"}, {Dim("ff", 2)}, {}); });
  expect_usage({"'modle'", "'model'"}, [&] { nn::dense(x, "d", {"modle"}, {Dim("ff", 2)}); });
  expect_usage({"[smoothed] smoothing 1.5"}, [&] { nn::smoothed(labels, model, 1.5); });
  expect_usage({"'lenth'"}, [&] { nn::dropout_shared(x, 0.5, {"lenth"}); });
  expect_usage({"[jitter] eps -1"}, [&] { nn::jitter(x, -1); });
  expect_usage({"[clip_gradient] limit 0"}, [&] { nn::clip_gradient(x, 0); });
  expect_usage({"[variance_scaling] scale 0"},
               [&] { nn::variance_scaling({.in = {"in"}, .scale = 0}); });
}

TEST_CASE("attention layers say what is wrong with their options") {
  Graph g;
  const Dim length("length", 6), memory("memory_length", 6), model("model", 3);
  Tensor x = g.input("x", {length, model}, DType::float32);
  expect_usage({"[window_mask] before -1"}, [&] { nn::window_mask(g, length, memory, -1, 2); });
  expect_usage({"[prefix_mask] prefix is float32"},
               [&] { nn::prefix_mask(constant(g, 2), length, memory); });
  expect_usage({"[rotary] dim 'model' has 3 elements"}, [&] { nn::rotary(x, "length", "model"); });
  expect_usage({"[sinusoids] dim 'model' has 3 elements"},
               [&] { nn::sinusoids(g, length, model); });
  expect_usage({"[relative_buckets] 2 buckets", "at least 4 buckets"}, [&] {
    nn::relative_buckets(g, length, memory, {2, 16, true});
  });
  expect_usage({"max_distance 8", "greater distance than 8"}, [&] {
    nn::relative_buckets(g, length, memory, {32, 8, true});
  });
  expect_usage({"[self_attention] 6 heads cannot share 4 memory heads"},
               [&] { nn::self_attention(x, "a", "model", {.heads = 6, .memory_heads = 4}); });
  expect_usage({"[local_attention] radius 4 and block 3"}, [&] {
    nn::LocalOptions o;
    o.radius = 4;
    o.block = 3;
    o.key_dim = "model";
    nn::local_attention(x, x, x, o);
  });
  expect_usage({"[biased_attention] the bias has the dim 'heads'"}, [&] {
    nn::BiasedOptions o;
    o.key_dim = "model";
    o.bias = constant(g, 1, DType::float32, Shape{Dim("heads", 2)});
    Tensor m = rename(x, "length", "memory_length");
    nn::biased_attention(x, m, m, {}, o);
  });
  expect_usage({"[biased_attention] dropout is shared along 'heads'"}, [&] {
    nn::BiasedOptions o;
    o.key_dim = "model";
    o.dropout = 0.1, o.dropout_shared = {"heads"};
    Tensor m = rename(x, "length", "memory_length");
    nn::biased_attention(x, m, m, {}, o);
  });
  expect_usage({"[talking_heads]", "they share one dim"}, [&] {
    AttentionOptions o;
    o.key_dim = "model";
    Tensor m = rename(x, "length", "memory_length");
    Tensor mix = constant(g, 1, DType::float32, {Dim("heads", 2), Dim("to", 2)});
    nn::talking_heads(x, m, m, mix, mix, {}, o);
  });
  expect_usage({"[compress_mean] factor 0 of dim 'length'"},
               [&] { nn::compress_mean(x, "length", 0); });
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
