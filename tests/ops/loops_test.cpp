// Loops: what a body computes once an iteration is what as many copies of it compute, under every
// layout, values and gradients.
#include "tessera/loops.h"

#include <cmath>
#include <map>
#include <set>

#include "support/catch.h"
#include "support/check_equal.h"
#include "support/expect_error.h"
#include "support/gpt_run.h"
#include "tessera/explain.h"
#include "tessera/nn.h"
#include "tessera/optim.h"
#include "tessera/session.h"

namespace tessera::test {

namespace TESSERA_FILE {

struct Model {
  Graph graph;
  std::vector<Tensor> outputs;
};

/// Runs what `build` builds, twice, and returns its outputs and what it stores.
Values run(const std::function<std::vector<Tensor>(Graph&)>& build, const std::string& mesh,
           const std::string& layout) {
  Model m;
  m.outputs = build(m.graph);
  for (size_t i = 0; i < m.outputs.size(); ++i)
    m.outputs[i] = identity(m.outputs[i]).named("out" + std::to_string(i));
  const Mesh on = Mesh::parse(mesh);
  Cluster cluster = Cluster::threads(on.size());
  Session session(m.graph, cluster,
                  {on, Layout::parse(layout), {{"run", m.outputs, !m.graph.updates().empty()}}});
  session.run("run");
  session.run("run");
  Values values;
  for (const Tensor& t : m.outputs) values[t.name()] = session.fetch(t.name());
  for (const std::string& name : session.program().stored_names())
    values[name] = session.fetch(name);
  return values;
}

const Dim kTexts("texts", 2), kLength("length", 4);
const Dim kLayers("layers", 3), kBatch("batch", 4), kModel("model", 6), kFf("ff", 5);

Tensor input_of(Graph& g) {
  return cast(iota(g, kBatch), DType::float64) * 0.1 + cast(iota(g, kModel), DType::float64) * 0.2;
}

/// A residual layer with parameters of its own, dropout, and a norm.
Tensor layer(Tensor x) {
  Graph& g = x.graph();
  const Scope scope(g, "block");
  Tensor up = g.parameter("up", {kModel, kFf}, nn::normal(0.5), DType::float64);
  Tensor bias = g.parameter("bias", {kFf}, nn::zeros(), DType::float64);
  Tensor down = g.parameter("down", {kFf, kModel}, nn::normal(0.5), DType::float64);
  Tensor h = tanh(einsum({x, up}, {kBatch, kFf}) + bias);
  h = dropout(h, 0.25);
  return x + einsum({h, down}, {kBatch, kModel});
}

/// A layer of attention with biases by distance, which all layers share, and dropout.
Tensor attention_layer(Tensor x, Tensor by_distance) {
  Graph& g = x.graph();
  const Scope scope(g, "block");
  const Dim depth("d_head", 5);
  const auto projected = [&](const char* name) {
    return einsum({x, g.parameter(name, {kModel, depth}, nn::normal(0.5), DType::float64)},
                  {kTexts, kLength, depth});
  };
  AttentionOptions o;
  o.causal = true, o.dropout = 0.3, o.by_distance = by_distance;
  const Tensor seen =
      attention(projected("query"), rename(projected("key"), "length", "memory_length"),
                rename(projected("value"), "length", "memory_length"), {}, o);
  Tensor out = g.parameter("out", {depth, kModel}, nn::normal(0.5), DType::float64);
  return x + einsum({seen, out}, {kTexts, kLength, kModel});
}

std::vector<Tensor> train_attention(Graph& g, bool unroll) {
  Tensor table = g.parameter("table", Shape{Dim("entries", 3)}, nn::normal(1), DType::float64);
  const Tensor x = cast(iota(g, kTexts), DType::float64) * 0.1 +
                   cast(iota(g, kLength), DType::float64) * 0.3 +
                   cast(iota(g, kModel), DType::float64) * 0.2;
  Tensor y = repeat(kLayers, sin(x), [&](Tensor t) { return attention_layer(t, table); }, {unroll});
  Tensor loss = mean_all(square(y));
  const Minimized step =
      minimize(loss, constant(g, 0.05, DType::float64), adam({.weight_decay = 0.1}), {.clip = 1});
  std::vector<Tensor> out{loss, y};
  out.insert(out.end(), step.gradients.begin(), step.gradients.end());
  return out;
}

std::vector<Tensor> train_layers(Graph& g, bool unroll) {
  Tensor y = repeat(kLayers, input_of(g), layer, {unroll});
  Tensor loss = mean_all(square(y));
  const Minimized step =
      minimize(loss, constant(g, 0.05, DType::float64), adam({.weight_decay = 0.1}), {.clip = 1});
  std::vector<Tensor> out{loss, y};
  out.insert(out.end(), step.gradients.begin(), step.gradients.end());
  return out;
}

TEST_CASE("layers in a loop train as copies of them do, under every layout", "[loops]") {
  const Values plain = run([](Graph& g) { return train_layers(g, true); }, "a:1", "");
  const std::pair<const char*, const char*> layouts[] = {
      {"a:1", ""},
      {"a:2", "batch:a"},
      {"a:2", "ff:a"},
      {"a:2", "model:a"},
      {"a:2", "layers:a"},
      {"a:3", "batch:a"},
      {"a:2;b:2", "batch:a;ff:b"},
      {"a:2;b:2", "batch:a;model:b"},
      {"a:2;b:2", "batch:a;@params model:a;ff:b"},
      {"a:2;b:2", "batch:a;@grads model:b"},
      {"a:4", "batch:a;@state model:a"}};
  for (const auto& [mesh, layout] : layouts) {
    INFO(mesh << " " << layout);
    check_equal(plain, run([](Graph& g) { return train_layers(g, false); }, mesh, layout));
  }
}

TEST_CASE("attention in a loop draws and learns as copies of it do, under every layout",
          "[loops]") {
  const Values plain = run([](Graph& g) { return train_attention(g, true); }, "a:1", "");
  for (const auto& [mesh, layout] : std::vector<std::pair<const char*, const char*>>{
           {"a:1", ""},
           {"a:2", "texts:a"},
           {"a:2", "length:a"},
           {"a:2", "length,memory_length:a"},
           {"a:2", "layers:a"},
           {"a:2;b:2", "texts:a;length,memory_length:b"}}) {
    INFO(mesh << " " << layout);
    check_equal(plain, run([](Graph& g) { return train_attention(g, false); }, mesh, layout));
  }
}

TEST_CASE("iterations share parameters unless they are layers, and draw their own numbers",
          "[loops]") {
  const auto build = [](bool unroll, bool own) {
    return [unroll, own](Graph& g) {
      const auto cell = [](Tensor x) {
        Tensor w = x.graph().parameter("cell", {kModel}, nn::normal(1), DType::float64);
        return sin(x * w) + random_uniform(x.graph(), x.shape(), 0, 1, DType::float64);
      };
      const Tensor x = input_of(g);
      const IterationResults r =
          scan(g, kLayers, {x}, {},
               [&](const Iteration& t) {
                 return IterationResults{{cell(t.carries[0])}, {random_uniform(g, {})}};
               },
               {unroll, own});
      std::vector<Tensor> out{sum_all(r.carries[0]), r.stacked[0]};
      out.push_back(gradients(out[0], {g.find("cell")})[0]);
      return out;
    };
  };
  for (const bool own : {false, true}) {
    const Values looped = run(build(false, own), "a:1", "");
    CHECK(looped.at("cell").sizes == (own ? std::vector<int64_t>{3, 6} : std::vector<int64_t>{6}));
    const Array& drawn = looped.at("out1");
    CHECK(std::set<double>{drawn.at(0), drawn.at(1), drawn.at(2)}.size() == 3);
    check_equal(looped, run(build(true, own), "a:1", ""));
    for (const char* layout : {"batch:a", "model:b", "layers:a;model:b"})
      check_equal(looped, run(build(false, own), "a:2;b:2", layout));
  }
}

TEST_CASE("a scan carries, slices, stacks and sums", "[loops]") {
  const auto build = [](bool unroll) {
    return [unroll](Graph& g) {
      Tensor x = input_of(g);
      Tensor w = g.parameter("w", {kLayers, kModel}, nn::normal(1), DType::float64);
      Tensor c = g.parameter("c", {kModel}, nn::normal(1), DType::float64);
      const IterationResults r =
          scan(g, kLayers, {x, reduce_sum(x, "model")}, {w},
               [&](const Iteration& t) {
                 Tensor scaled = t.carries[0] * t.slices[0] + c;
                 Tensor i = cast(t.index, DType::float64);
                 IterationResults made;
                 made.carries = {sin(scaled), t.carries[1] * i + reduce_sum(scaled, "model")};
                 made.stacked = {scaled * i, t.carries[1]};
                 made.sums = {reduce_sum(scaled, "batch")};
                 return made;
               },
               {unroll});
      Tensor loss = sum_all(r.carries[0]) + sum_all(square(r.carries[1])) +
                    sum_all(r.stacked[0] * w) + sum_all(sin(r.stacked[1])) +
                    sum_all(square(r.sums[0]));
      std::vector<Tensor> out{loss};
      for (const auto* list : {&r.carries, &r.stacked, &r.sums})
        out.insert(out.end(), list->begin(), list->end());
      for (const Tensor& grad : gradients(loss, {w, c})) out.push_back(grad);
      return out;
    };
  };
  const Values plain = run(build(true), "a:1", "");
  for (const char* layout :
       {"", "batch:a", "model:a", "layers:a", "batch:a;model:b", "model:a;layers:b", "batch:a+b"}) {
    INFO(layout);
    check_equal(plain, run(build(false), "a:2;b:2", layout));
  }
}

TEST_CASE("a while loop runs until its condition fails, and has gradients", "[loops]") {
  // x <- sin(x) + w until the sum passes a limit: the number of iterations depends on data.
  const auto build = [](double limit, int64_t most) {
    return [=](Graph& g) {
      Tensor w = g.parameter("w", {kModel}, nn::normal(0.1), DType::float64);
      const IterationResults r =
          while_loop([&](const std::vector<Tensor>& c) { return sum_all(c[0]) < limit; },
                     [&](const Iteration& t) {
                       Tensor next = t.carries[0] * 1.5 + square(w);
                       return IterationResults{{next, t.carries[1] + 1.0},
                                               {reduce_sum(next, "batch")},
                                               {reduce_sum(square(next), "batch")}};
                     },
                     {input_of(g), constant(g, 0, DType::float64)}, most);
      Tensor loss =
          sum_all(sin(r.carries[0])) + sum_all(square(r.sums[0])) + sum_all(sin(r.stacked[0]));
      return std::vector<Tensor>{loss,         r.carries[0], r.carries[1],
                                 r.stacked[0], r.sums[0],    gradients(loss, {w})[0]};
    };
  };
  const Values plain = run(build(100, 8), "a:1", "");
  CHECK(plain.at("out2").at(0) == 5);  // what input_of adds up to is 15.6
  for (int64_t i = 5 * 6; i < 8 * 6; ++i) CHECK(plain.at("out3").at(i) == 0);
  for (const char* layout : {"batch:a", "model:a", "batch:a;model:b", "_trip:a"}) {
    INFO(layout);
    check_equal(plain, run(build(100, 8), "a:2;b:2", layout));
  }
  Values fewer = run(build(100, 5), "a:1", "");  // as many as it takes: nothing changes
  CHECK(fewer.at("out0").at(0) == Approx(plain.at("out0").at(0)));
  check_equal({{"w", plain.at("out5")}}, {{"w", fewer.at("out5")}});
  CHECK(run(build(100, 4), "a:1", "").at("out2").at(0) == 4);
  CHECK(run(build(1, 4), "a:1", "").at("out2").at(0) == 0);
}

TEST_CASE("the gradient of a while loop is its numeric one", "[loops]") {
  const auto loss = [](double shift) {
    const Values v = run(
        [=](Graph& g) {
          Tensor w = g.parameter(
              "w", {},
              [=](Graph& in, const Shape&, DType dtype) {
                return constant(in, 1.1 + shift, dtype);
              },
              DType::float64);
          const IterationResults r = while_loop(
              [](const std::vector<Tensor>& c) { return c[0] < 20.0; },
              [&](const Iteration& t) { return IterationResults{{t.carries[0] * w + 0.3}}; },
              {constant(g, 1, DType::float64)}, 40);
          return std::vector<Tensor>{sum_all(square(r.carries[0])),
                                     gradients(square(r.carries[0]), {w})[0]};
        },
        "a:1", "");
    return std::pair(v.at("out0").at(0), v.at("out1").at(0));
  };
  const double h = 1e-6, numeric = (loss(h).first - loss(-h).first) / (2 * h);
  CHECK(loss(0).second == Approx(numeric).epsilon(1e-5));
}

TEST_CASE("cond runs one branch, and gradients go through it alone", "[loops]") {
  const auto build = [](double limit) {
    return [=](Graph& g) {
      Tensor x = input_of(g) - 0.3;  // some are negative: log of them is not a number
      Tensor w = g.parameter("w", {kModel}, nn::normal(1), DType::float64);
      const std::vector<Tensor> r = cond(
          sum_all(x) < limit,
          [&] {
            return std::vector<Tensor>{x * w, reduce_max(x * w, "model") > 0.5};
          },
          [&] {
            return std::vector<Tensor>{log(x) * w * w, reduce_max(x, "model") > 0.5};
          });
      Tensor loss = sum_all(r[0]);
      return std::vector<Tensor>{r[0], r[1], gradients(loss, {w})[0], x};
    };
  };
  const Values yes = run(build(1000), "a:1", "");
  for (int64_t i = 0; i < 24; ++i)
    CHECK(yes.at("out0").at(i) == Approx(yes.at("out3").at(i) * yes.at("w").at(i % 6)));
  for (int64_t m = 0; m < 6; ++m) {
    double sum = 0;
    for (int64_t b = 0; b < 4; ++b) sum += yes.at("out3").at(b * 6 + m);
    CHECK(yes.at("out2").at(m) == Approx(sum));
  }
  for (const char* layout : {"batch:a", "model:b", "batch:a;model:b"})
    check_equal(yes, run(build(1000), "a:2;b:2", layout));
  const Values no = run(build(-1000), "a:1", "");
  CHECK(std::isnan(no.at("out0").at(0)));
  CHECK(no.at("out0").at(23) ==
        Approx(std::log(no.at("out3").at(23)) * no.at("w").at(5) * no.at("w").at(5)));
}

TEST_CASE("a gpt in a loop is the gpt of as many blocks", "[loops]") {
  const auto train = [](bool scan, const GradientOptions& gradient, const std::string& mesh,
                        const std::string& layout, int64_t* transient = nullptr) {
    nn::GptOptions o = small_gpt(DType::float64);
    o.layers = 4;
    o.scan = scan;
    Graph g;
    const nn::Model model = nn::gpt(g, o);
    MinimizeOptions options;
    options.clip = 1;
    options.gradient = gradient;
    minimize(model.loss, constant(g, 0.01, DType::float64), adam({.weight_decay = 0.1}), options);
    const Mesh on = Mesh::parse(mesh);
    Cluster ranks = Cluster::threads(on.size());
    Session session(g, ranks, {on, Layout::parse(layout), {{"train", {model.loss}, true}}});
    if (transient) *transient = session.program().transient_bytes();
    for (const std::string& name :
         session.program().stored_names()) {  // not random: alike for both
      if (name.find("optimizer") != std::string::npos) continue;
      Array value = session.fetch(name);
      const size_t at = name.find("gpt.block");
      const bool stacked = scan && at == 0, single = !scan && at == 0;
      const int64_t of_layer = stacked ? value.elements() / o.layers : value.elements();
      std::string common = name;
      if (single) common.erase(9, 1);
      for (int64_t i = 0; i < value.elements(); ++i) {
        const int64_t layer = stacked ? i / of_layer : single ? name[9] - '0' : 0;
        const auto seed = static_cast<double>(std::hash<std::string>{}(common) % 1000);
        value.data<double>()[i] = 0.3 * std::sin(seed + 7.0 * static_cast<double>(layer) +
                                                 1.3 * static_cast<double>(i % of_layer));
      }
      session.assign(name, value);
    }
    std::vector<double> losses;
    for (int step = 0; step < 4; ++step) {
      feed_tokens(session, model, step);
      session.run("train");
      losses.push_back(session.fetch_scalar(model.loss.name()));
    }
    return losses;
  };
  const std::vector<double> plain = train(false, {}, "a:1", "");
  const std::tuple<GradientOptions, const char*, const char*> cases[] = {
      {{}, "a:1", ""},
      {{}, "a:2;b:2", "batch:a;heads,ff,vocab:b"},
      {{}, "a:2;b:2", "batch:a;heads,ff,vocab:b;@/*norm*/ length:b"},
      {{}, "a:2", "batch:a;@params d_model:a"},
      {{.recompute = {"block"}}, "a:2", "batch:a"},
      {{.recompute = {"attention"}}, "a:2", "batch:a;@params d_model:a"}};
  for (const auto& [gradient, mesh, layout] : cases) {
    INFO(mesh << " " << layout << " recompute " << gradient.recompute.size());
    const std::vector<double> losses = train(true, gradient, mesh, layout);
    for (size_t i = 0; i < plain.size(); ++i) CHECK(losses[i] == Approx(plain[i]).epsilon(1e-10));
  }
  int64_t all = 0, kept = 0;
  train(true, {}, "a:1", "", &all);
  train(true, {.recompute = {"block"}}, "a:1", "", &kept);
  CHECK(kept < all * 6 / 10);
}

TEST_CASE("what is sent in a loop is sent as often as it has iterations, sums once", "[loops]") {
  nn::GptOptions o = small_gpt(DType::float32);
  o.layers = 5;
  auto sent = [&](bool scan, int64_t parts, const std::string& layout) {
    Graph g;
    nn::GptOptions size = o;
    size.scan = scan;
    size.batch = o.batch / parts;
    MinimizeOptions options;
    if (!scan) options.gradient.reshard_after_forward = {"block"};  // a loop always does
    const Minimized step = minimize_in_microbatches(
        g, "batch", parts, [&] { return nn::gpt(g, size).loss; }, constant(g, 0.01), adam(),
        options);
    const Explanation e =
        explain(g, {Mesh::parse("a:2;b:2"), Layout::parse(layout), {{"train", {step.loss}, true}}});
    return e.functions.back().bytes;
  };
  for (const char* layout : {"batch:a", "batch:a;@params d_model:a", "batch:a;heads,ff:b"})
    CHECK(sent(true, 1, layout) == sent(false, 1, layout));
  CHECK(sent(false, 5, "batch:a") == sent(false, 1, "batch:a"));
}

TEST_CASE("an eager graph runs loops iteration by iteration", "[loops]") {
  Graph g({.eager = true});
  Tensor y = repeat(kLayers, constant(g, 1, DType::float64, {kModel}), [](Tensor t) {
    Tensor w = t.graph().parameter("w", {kModel}, nn::normal(1), DType::float64);
    return t * w + 1.0;
  });
  const Values loop = run(
      [](Graph& graph) {
        Tensor x = constant(graph, 1, DType::float64, {kModel});
        return std::vector<Tensor>{repeat(kLayers, x, [](Tensor t) {
          Tensor w = t.graph().parameter("w", {kModel}, nn::normal(1), DType::float64);
          return t * w + 1.0;
        })};
      },
      "a:1", "");
  for (int64_t i = 0; i < 6; ++i) CHECK(g.fetch(y).at(i) == Approx(loop.at("out0").at(i)));
  const IterationResults r =
      while_loop([](const std::vector<Tensor>& c) { return c[0] < 10.0; },
                 [](const Iteration& t) { return IterationResults{{t.carries[0] * 3.0}}; },
                 {constant(g, 1, DType::float64)}, 9);
  CHECK(g.fetch(r.carries[0]).at(0) == 27);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
