// Regions of a model whose gradient is not that of their nodes: what is recomputed, and rules
// of a user's own.
#include <functional>

#include "base/fail.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "support/program_run.h"
#include "support/reference.h"
#include "tessera/explain.h"
#include "tessera/ops.h"
#include "tessera/session.h"

namespace tessera::test {

namespace TESSERA_FILE {

using Tensors = std::vector<Tensor>;

const Dim batch("batch", 10), d("d", 8), ff("ff", 64);
constexpr int kLayers = 6;

enum class Keep { all, blocks, blocks_of_blocks };

Initializer drawn() {
  return [](Graph& g, const Shape& shape, DType dtype) {
    return random_normal(g, shape, 0, 0.3, dtype);
  };
}

/// A residual block that is wide inside, with random numbers and a parameter made in place.
Tensor block(Tensor x) {
  Graph& g = x.graph();
  const Tensor in = g.parameter("in", {d, ff}, drawn()), out = g.parameter("out", {ff, d}, drawn());
  Tensor h = dropout(gelu(einsum({x, in}, {batch, ff})), 0.1);
  return x + einsum({sin(h * h), out}, {batch, d});
}

/// Loss and gradients of a stack of blocks.
Tensors stack(Graph& g, Keep keep) {
  Tensor x = g.input("x", {batch, d}, DType::float32);
  const std::function<Tensors(int, int)> layers = [&](int first, int last) -> Tensors {
    Tensor y = x;
    for (int n = first; n < last; ++n) {
      Scope scope(g, "layer" + std::to_string(n));
      y = keep == Keep::all ? block(y) : recompute(g, [&]() -> Tensors { return {block(y)}; })[0];
    }
    return {y};
  };
  for (int n = 0; n < kLayers; n += 3) {
    x = keep == Keep::blocks_of_blocks ? recompute(g, [&] { return layers(n, n + 3); })[0]
                                       : layers(n, n + 3)[0];
  }
  Tensor loss = mean_all(square(x)).named("loss");
  Tensors wanted = {loss};
  const Tensors parameters = g.parameters();
  for (const Tensor& grad : gradients(loss, parameters)) wanted.push_back(grad);
  for (size_t i = 0; i < parameters.size(); ++i)
    wanted[i + 1].named("grad_of_" + parameters[i].name());
  return wanted;
}

CompileOptions options_of(const Tensors& wanted, const std::string& mesh,
                          const std::string& layout) {
  CompileOptions options;
  options.mesh = Mesh::parse(mesh);
  options.layout = Layout::parse(layout);
  options.functions = {{"f", wanted, false}};
  options.seed = 5;
  return options;
}

Wholes run(Keep keep, const std::string& mesh, const std::string& layout) {
  Graph g;
  const Tensors wanted = stack(g, keep);
  Cluster cluster = Cluster::threads(Mesh::parse(mesh).size());
  Session session(g, cluster, options_of(wanted, mesh, layout));
  Whole x({"batch", "d"}, {batch.size, d.size});
  for (size_t i = 0; i < x.data.size(); ++i) x.data[i] = std::sin(static_cast<double>(i));
  session.feed("x", array_of(x, DType::float32));
  session.run("f");
  Wholes values;
  for (const Tensor& t : wanted) values[t.name()] = whole_of(session.fetch(t.name()));
  return values;
}

int64_t transient_of(Keep keep) {
  Graph g;
  const Tensors wanted = stack(g, keep);
  return explain(g, options_of(wanted, "p:1", "")).memory.transient;
}

TEST_CASE("what is recomputed is the same, to the bit", "[regions]") {
  for (const auto& [mesh, layout] : {std::pair<std::string, std::string>{"p:1", ""},
                                     {"p:2", "batch:p"},
                                     {"p:3", "batch:p"},
                                     {"p:2;q:2", "batch:p;ff:q"},
                                     {"p:2;q:2", "d:p+q;@params ff:p"}}) {
    INFO(mesh << " " << layout);
    const Wholes kept = run(Keep::all, mesh, layout);
    REQUIRE(kept.size() == 1 + 2 * kLayers);
    for (Keep keep : {Keep::blocks, Keep::blocks_of_blocks}) {
      const Wholes again = run(keep, mesh, layout);
      REQUIRE(again.size() == kept.size());
      for (const auto& [name, value] : kept) {
        INFO(name);
        CHECK(relative_error(again.at(name), value) == 0);
      }
    }
  }
}

TEST_CASE("what is recomputed is not kept", "[regions]") {
  const int64_t all = transient_of(Keep::all), blocks = transient_of(Keep::blocks),
                nested = transient_of(Keep::blocks_of_blocks);
  INFO(all << " " << blocks << " " << nested);
  CHECK(blocks * 2 < all);
  CHECK(nested < blocks * 3 / 2);
}

TEST_CASE("a region whose results nobody needs costs nothing", "[regions]") {
  Graph g;
  Tensor x = g.input("x", {batch, d}, DType::float32);
  recompute(g, [&]() -> Tensors { return {exp(x)}; });
  recompute(g, []() -> Tensors { return {}; });
  Tensor y = sum_all(square(x));
  CHECK(g.producer(gradients(y, {x})[0].id()).name.find("square") == 0);
}

TEST_CASE("a gradient may be asked for inside of what is recomputed", "[regions]") {
  auto of_middle = [](bool again) {
    Graph g({.eager = true});
    Tensor x = iota(g, d, DType::float32), middle;
    auto build = [&]() -> Tensors { return {exp(middle = sin(x))}; };
    Tensor y = again ? recompute(g, build)[0] : build()[0];
    return whole_of(g.fetch(gradients(sum_all(y), {middle})[0]));
  };
  CHECK(relative_error(of_middle(true), of_middle(false)) == 0);
}

TEST_CASE("the rule of custom_gradient is what gradients take", "[regions]") {
  Graph g({.eager = true});
  Tensor x = iota(g, d, DType::float32), w = x * 2.0, unused = exp(x);
  // Its gradient is clipped, and w gets none.
  auto clipped = custom_gradient(
      {x, w, unused},
      [](const Tensors& in) -> Tensors {
        return {in[0] * in[1], in[0]};
      },
      [](const Tensors& xs, const Tensors& ys, const Tensors& grads) -> Tensors {
        CHECK(xs.size() == 3);
        CHECK(ys.size() == 2);
        return {clip(grads[0] * xs[1], -3, 3) + grads[1], Tensor(), Tensor()};
      });
  const Whole grad = whole_of(g.fetch(gradients(sum_all(clipped[0]), {x})[0]));
  const std::vector<double> expected = {0, 2, 3, 3, 3, 3, 3, 3};
  CHECK(grad.data == expected);
  const Whole both = whole_of(g.fetch(gradients(sum_all(clipped[0] + clipped[1] * 10.0), {x})[0]));
  CHECK(both.data[1] == 12);
  CHECK(whole_of(g.fetch(clipped[0])).data[3] == 18);
}

TEST_CASE("errors of custom_gradient", "[regions][errors]") {
  const auto pass = [](const Tensors&, const Tensors&, const Tensors& grads) { return grads; };
  Graph g;
  Tensor x = g.input("x", {d}, DType::float32), w = g.parameter("w", {d}, drawn());
  expect_usage({"[custom_gradient] needs operands and a rule (gradient_regions_test.cpp:"}, [&] {
    custom_gradient(
        {}, [](const Tensors& in) { return in; }, pass);
  });
  expect_usage({"[custom_gradient] reads 'w', which would get no gradient: make it an operand, or",
                "stop_gradient", "(gradient_regions_test.cpp:"},
               [&] {
                 custom_gradient(
                     {x}, [&](const Tensors& in) -> Tensors { return {in[0] * w}; }, pass);
               });
  Tensor inside, fixed = stop_gradient(w);
  Tensor y = custom_gradient(
      {x},
      [&](const Tensors& in) -> Tensors {
        inside = exp(in[0]);
        return {inside * fixed};
      },
      pass)[0];
  expect_usage({"[gradients] 'exp' is made inside a custom_gradient"},
               [&] { gradients(sum_all(y), {inside}); });
  expect_usage({"[custom_gradient] 'exp' is made inside and has a gradient, but is not among"},
               [&] { gradients(sum_all(y + inside), {x}); });
  auto with_rule = [&](const GradientRule& rule) {
    Tensor z = custom_gradient(
        {x}, [](const Tensors& in) -> Tensors { return {exp(in[0])}; }, rule)[0];
    gradients(sum_all(z), {x});
  };
  expect_usage({"[custom_gradient] the rule makes 0 gradients of 1 operands"},
               [&] { with_rule([](auto&, auto&, auto&) { return Tensors{}; }); });
  expect_usage({"the gradient of operand 0 is float32 [] where float32 [d=8] is needed"}, [&] {
    with_rule([](auto&, auto&, auto& grads) { return Tensors{sum_all(grads[0])}; });
  });
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
