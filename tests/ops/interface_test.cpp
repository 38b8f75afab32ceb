// The C++ interface, evened out: numbers, Dims and host data wherever they make sense.
#include <type_traits>

#include "ops/op_cases_run.h"
#include "support/expect_error.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

const Dim a("a", 3), b("b", 4);

template <class T>
concept Condition = requires(T t) {
  t ? 1 : 0;
};
static_assert(!Condition<Tensor>, "a Tensor is no condition");

/// The values of `y` under a layout of two ranks.
std::vector<double> values(Graph& g, Tensor y, const char* layout = "") {
  Cluster ranks = Cluster::threads(2);
  const std::string name = y.uniquely_named("y").name();
  Session session(g, ranks, {Mesh::parse("m:2"), Layout::parse(layout), {{"f", {g.find(name)}}}});
  session.run("f");
  return whole_of(session.fetch(name)).data;
}

TEST_CASE("a constant of host data is sliced by the rules, and no feed() is needed", "[fast]") {
  using Values = std::vector<double>;
  for (const char* layout : {"", "a:m", "b:m"}) {
    Graph g;
    const Array table = Array::of<float>({a, b}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
    const Tensor x = constant(g, table);
    CHECK(values(g, reduce_sum(x * 2.0, b), layout) == Values{12, 44, 76});
    CHECK(values(g, zeros_like(x) + ones_like(x) * 3.0, layout) == Values(12, 3));
    const Tensor mask = constant(g, Array::of<bool>({b}, {true, false, false, true}));
    CHECK(values(g, where(mask, x, -1.0), layout) ==
          Values{0, -1, -1, 3, 4, -1, -1, 7, 8, -1, -1, 11});
  }
  Graph eager({.eager = true});
  const Tensor e = constant(eager, Array::of<int32_t>({a}, {4, 5, 6}));
  CHECK(eager.fetch(e + e).at(2) == 12);
  expect_usage({"[Array] 2 values for [a=3], which has 3 elements"}, [] {
    Array::of<double>({a}, {1, 2});
  });
  Array wrong = Array::of<double>({a}, {1, 2, 3});
  wrong.bytes.pop_back();
  expect_usage({"[constant]", "1 names of dims, 1 sizes and 23 bytes", "(interface_test.cpp:"},
               [&] { constant(eager, wrong); });
}

TEST_CASE("take_along applies indices of every row, under every layout", "[fast]") {
  for (const char* layout : {"", "a:m", "b:m", "b_taken?:m"}) {
    Graph g;
    const Tensor x = cast(mod(iota(g, a) * 5.0 + iota(g, b) * 3.0, 7.0), DType::float32);
    const Tensor order = argsort(x, b);
    CHECK(values(g, take_along(x, order, b), layout) == values(g, sort(x, b), layout));
    const Tensor two = slice(order, "b", 0, 2);
    CHECK(values(g, take_along(x, two, b), layout).size() == 6);
  }
  Graph g;
  const Tensor x = g.input("x", {a, b}, DType::float32), i = g.input("i", {a}, DType::int32);
  expect_usage({"[take_along] dim 'b' is not in both", "gather()", "(interface_test.cpp:"},
               [&] { take_along(x, i, b); });
}

TEST_CASE("numbers and Dims stand where tensors and names do", "[fast]") {
  using Values = std::vector<double>;
  Graph g;
  Tensor x = cast(iota(g, a), DType::float32);
  CHECK(values(g, add(x, 1.0)) == Values{1, 2, 3});
  CHECK(values(g, sub(5.0, x)) == Values{5, 4, 3});
  CHECK(values(g, mul(x, 2.0)) == Values{0, 2, 4});
  CHECK(values(g, div(x, 2.0)) == Values{0, 0.5, 1});
  CHECK(values(g, cast(less(x, 1.0), DType::float32)) == Values{1, 0, 0});
  CHECK(values(g, cast(logical_and(x > 0.0, true), DType::float32)) == Values{0, 1, 1});
  CHECK(values(g, where(x > 1.0, 9.0, x)) == Values{0, 1, 9});
  Tensor y = x;
  y += 1.0;
  y *= y;
  y -= x;
  y /= 2;
  CHECK(values(g, y) == Values{0.5, 1.5, 3.5});
  const Tensor square = x + iota(g, b, DType::float32);
  CHECK(values(g, reduce_max(square, {a, b})) == Values{5});
  CHECK(values(g, reduce_max(square, Shape{a, b})) == Values{5});
  for (const double share : values(g, softmax(x * 0.0, a))) CHECK(share == Approx(1.0 / 3));
  CHECK(values(g, sort(square, b, true)).front() == 3);
  CHECK(rename(x, a, "c").shape() == Shape{Dim("c", 3)});
}

TEST_CASE("update() takes the dims in any order, and minimize() a number", "[fast]") {
  Graph g;
  Tensor w = g.state("w", {a, b}, nn::zeros());
  g.update(w, transpose(w, {b, a}) + iota(g, b, DType::float32));
  Tensor p = g.parameter("p", {a}, nn::ones());
  const Minimized first = minimize(sum_all(p), 0.5, sgd());
  CHECK(first.gradients[0].name() == "p.grad");
  Cluster one = Cluster::threads(1);
  Session session(g, one, {Mesh::parse("m:1"), {}, {{"f", {first.loss}, true}}});
  session.run("f");
  CHECK(session.fetch("w").at(2) == 2);
  CHECK(session.fetch("p").at(0) == 0.5);
}

TEST_CASE("gradients that are one tensor have names of their own, and inputs keep theirs",
          "[fast]") {
  Graph g;
  Tensor x = g.input("x", {a}, DType::float32);
  Tensor p = g.parameter("p", {a}, nn::ones()), q = g.parameter("q", {a}, nn::ones());
  const Minimized step = minimize(sum_all((p + q) * x), 0.5, sgd());
  CHECK(step.gradients[0].name() == "p.grad");
  CHECK(step.gradients[1].name() == "q.grad");
  CHECK(x.name() == "x");
}

TEST_CASE("an eager loop without an iteration has sums and stacks of zeros", "[fast]") {
  for (const bool eager : {true, false}) {
    Graph g({.eager = eager});
    const Tensor x = constant(g, 2, DType::float32, {a});
    const IterationResults made =
        while_loop([&](const std::vector<Tensor>& c) { return sum_all(c[0]) < 0.0; },
                   [&](const Iteration& i) {
                     return IterationResults{{i.carries[0]}, {x * 3.0}, {x, sum_all(x)}};
                   },
                   {x}, 4);
    REQUIRE(made.sums.size() == 2);
    REQUIRE(made.stacked.size() == 1);
    CHECK(made.sums[0].shape() == x.shape());
    CHECK(made.stacked[0].shape().elements() == 12);
    if (eager) CHECK(g.fetch(made.sums[0]).at(1) == 0);
    CHECK(made.carries[0].shape() == x.shape());
  }
}

TEST_CASE("the k largest along a dim that keeps its name have a gradient", "[fast]") {
  for (const char* layout : {"", "b:m"}) {
    Graph g;
    Tensor x = cast(iota(g, b), DType::float32) * 2.0 - 1.0;
    Tensor top = top_k(x, b, Dim("b", 2)).values;
    const Tensor grad = gradients(sum_all(square(top)), {x})[0];
    CHECK(values(g, grad, layout) == std::vector<double>{0, 0, 6, 10});
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
