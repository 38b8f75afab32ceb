// What loops refuse.
#include "support/catch.h"
#include "support/expect_error.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

const Dim kLayers("layers", 3), kModel("model", 6);

TEST_CASE("errors of loops", "[loops][errors]") {
  Graph g;
  Tensor x = constant(g, 1, DType::float32, {kModel});
  expect_usage(
      {"carry 0", "float32 [model=6]", "float64 [model=6]", "must agree", "loops_errors_test.cpp"},
      [&] {
        scan(g, kLayers, {x}, {}, [](const Iteration& t) {
          return IterationResults{{cast(t.carries[0], DType::float64)}};
        });
      });
  expect_usage({"[scan]", "makes 0 carries of 1"}, [&] {
    scan(g, kLayers, {x}, {}, [](const Iteration&) { return IterationResults{}; });
  });
  expect_usage({"[scan]", "no dim layers=3"}, [&] {
    scan(g, kLayers, {}, {x}, [](const Iteration& t) {
      return IterationResults{{}, {t.slices[0]}};
    });
  });
  expect_usage({"[scan] dim 'n' is bounded"}, [&] {
    scan(g, Dim::bounded("n", 3), {x}, {},
         [](const Iteration& t) { return IterationResults{t.carries}; });
  });
  expect_usage({"leave nothing"}, [&] {
    scan(g, kLayers, {}, {}, [](const Iteration&) { return IterationResults{}; });
  });
  expect_usage({"has the dim 'model' already"}, [&] {
    scan(g, kModel, {}, {}, [&](const Iteration&) { return IterationResults{{}, {x * 2.0}}; });
  });
}

TEST_CASE("what an iteration makes stays inside", "[loops][errors]") {
  Graph g;
  Tensor x = constant(g, 1, DType::float32, {kModel});
  Tensor inside;
  Tensor y = repeat(kLayers, x, [&](Tensor t) { return inside = t * 2.0; });
  expect_usage({"[add]", "a loop over 'layers' that has ended", "carry, stacked or summed"},
               [&] { inside + y; });
  expect_usage({"gradients", "each iteration of a loop"}, [&] { gradients(inside, {x}); });
  expect_usage({"function 'f' returns", "each iteration of a loop"}, [&] {
    Cluster one = Cluster::threads(1);
    Session session(g, one, {Mesh::parse("a:1"), {}, {{"f", {inside}, false}}});
  });
  expect_usage({"update() of 's'", "inside a loop"}, [&] {
    Tensor s = g.state("s", {kModel}, nn::zeros());
    repeat(kLayers, x, [&](Tensor t) {
      g.update(s, t);
      return t;
    });
  });
}

TEST_CASE("errors of while_loop and cond", "[loops][errors]") {
  Graph g;
  Tensor x = constant(g, 1, DType::float32, {kModel});
  expect_usage({"[while_loop] the condition is float32 [model=6]", "bool scalar"}, [&] {
    while_loop([](const std::vector<Tensor>& c) { return c[0]; },
               [](const Iteration& t) { return IterationResults{t.carries}; }, {x}, 3);
  });
  expect_usage({"[while_loop] 1 carries and at most 0 iterations"}, [&] {
    while_loop([](const std::vector<Tensor>& c) { return c[0]; },
               [](const Iteration& t) { return IterationResults{t.carries}; }, {x}, 0);
  });
  Tensor yes = sum_all(x) > 0.0;
  expect_usage({"[cond] the predicate is float32 [model=6]"}, [&] {
    cond(
        x, [&] { return std::vector<Tensor>{x}; }, [&] { return std::vector<Tensor>{x}; });
  });
  expect_usage({"[cond] result 0 is float32 [model=6] in one branch and float32 [] in the other"},
               [&] {
                 cond(
                     yes, [&] { return std::vector<Tensor>{x * 2.0}; },
                     [&] { return std::vector<Tensor>{sum_all(x)}; });
               });
  expect_usage({"[cond] one branch makes 1 tensors and the other 2"}, [&] {
    cond(
        yes, [&] { return std::vector<Tensor>{x * 2.0}; },
        [&] {
          return std::vector<Tensor>{x * 1.0, x * 2.0};
        });
  });
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
