// What goes wrong while a graph is built, named, and bound to a Session: empty names, empty
// functions and tensors, copies that are none, and numbers that a Session cannot take.
#include "ir/repeat.h"
#include "support/expect_error.h"
#include "tessera/tessera.h"

using namespace tessera;
using test::expect_usage;

namespace TESSERA_FILE {

const Dim kA("a", 4), kB("b", 6);
const char* kHere = "(errors_building_test.cpp:";

struct Inputs {
  Graph g;
  Tensor x = g.input("x", {kA, kB}, DType::float32), n = g.input("n", Shape{}, DType::int32);
  Tensor yes = n > 0.0;
};

using Tensors = std::vector<Tensor>;

TEST_CASE("nothing has an empty name", "[errors]") {
  Inputs m;
  expect_usage({"[input] the name is empty", kHere}, [&] { m.g.input("", {kA}, DType::float32); });
  expect_usage({"[parameter] the name is empty", kHere},
               [&] { m.g.parameter("", {kA}, nn::zeros()); });
  expect_usage({"[state] the name is empty", kHere}, [&] { m.g.state("", {kA}, nn::zeros()); });
  expect_usage({"[named] 'x' is given an empty name"}, [&] { m.x.named(""); });
  expect_usage({"[parameter] 'w' has an empty function as its initializer", "nn::zeros()", kHere},
               [&] { m.g.parameter("w", {kA}, {}); });
  Cluster ranks = Cluster::threads(1);
  expect_usage({"a function has an empty name; it is run by its name"}, [&] {
    Session(m.g, ranks, {Mesh::parse("p:1"), {}, {{"", {m.x}, false}}});
  });
}

TEST_CASE("copies of a scope are counted from 0", "[errors]") {
  Graph g;
  expect_usage({"[Scope] 'block' is copy 3 of 3; copies are counted from 0"},
               [&] { Scope(g, "block", 3, 3); });
  expect_usage({"[Scope] 'block' is copy -1 of 3"}, [&] { Scope(g, "block", -1, 3); });
  expect_usage({"[Scope] 'block' is copy 0 of 0"}, [&] { Scope(g, "block", 0, 0); });
  CHECK(g.scope().empty());
  CHECK(copies_of_scopes(g).empty());
}

TEST_CASE("empty functions are refused before they are called", "[errors]") {
  Inputs m;
  const auto one = [&] { return Tensors{m.x}; };
  expect_usage({"[cond] what runs if it is true is an empty function", kHere},
               [&] { cond(m.yes, nullptr, one); });
  expect_usage({"[cond] what runs otherwise is an empty function", kHere},
               [&] { cond(m.yes, one, nullptr); });
  expect_usage({"[scan] the body is an empty function", kHere},
               [&] { scan(m.g, kA, {}, {m.x}, nullptr); });
  expect_usage({"[repeat] the layer is an empty function", kHere},
               [&] { repeat(Dim("layers", 2), m.x, nullptr); });
  const IterationBody body = [](const Iteration& iteration) {
    return IterationResults{iteration.carries};
  };
  expect_usage({"[while_loop] the condition is an empty function", kHere},
               [&] { while_loop(nullptr, body, {m.x}, 3); });
  expect_usage({"[while_loop] the body is an empty function", kHere},
               [&] { while_loop([&](const Tensors&) { return m.yes; }, nullptr, {m.x}, 3); });
  expect_usage({"[sum_over_microbatches] what builds a microbatch is an empty function", kHere},
               [&] { sum_over_microbatches(m.g, "a", 2, nullptr); });
}

TEST_CASE("empty tensors of branches and iterations are errors of the loop", "[errors]") {
  Inputs m;
  const auto one = [&] { return Tensors{m.x}; };
  const auto none = [] { return Tensors{Tensor()}; };
  expect_usage({"[cond] a branch's result 0 is an empty Tensor; it was never assigned", kHere},
               [&] { cond(m.yes, none, one); });
  expect_usage({"[cond] the predicate is an empty Tensor", kHere}, [&] { cond({}, one, one); });
  const IterationBody body =
                          [](const Iteration&iteration) {
                            return IterationResults{iteration.carries};
                          },
                      nothing = [](const Iteration&) { return IterationResults{{Tensor()}}; },
                      stacks = [](const Iteration&) {
                        return IterationResults{{}, {Tensor()}};
                      };
  expect_usage({"[while_loop] the condition is an empty Tensor", kHere},
               [&] { while_loop([](const Tensors&) { return Tensor(); }, body, {m.x}, 3); });
  expect_usage({"[while_loop] carry 0 is an empty Tensor", kHere},
               [&] { while_loop([&](const Tensors&) { return m.yes; }, body, {Tensor()}, 3); });
  expect_usage({"[scan] an iteration's carry 0 is an empty Tensor", kHere},
               [&] { scan(m.g, kA, {m.x}, {}, nothing); });
  expect_usage({"[scan] an iteration's stacked tensor 0 is an empty Tensor", kHere},
               [&] { scan(m.g, kA, {}, {m.x}, stacks); });
  Graph eager({.eager = true});
  const Tensor t = constant(eager, 1) > 0.0;
  expect_usage({"[cond] a branch's result 0 is an empty Tensor", kHere},
               [&] { cond(t, none, none); });
}

TEST_CASE("branches whose results differ in the order of dims", "[errors]") {
  Inputs m;
  const auto one = [&] { return Tensors{m.x}; };
  expect_usage({"[cond] result 0 is float32 [a=4, b=6] in one branch and float32 [b=6, a=4] in the "
                "other; they must agree in the order of dims too, use transpose()",
                kHere},
               [&] { cond(m.yes, one, [&] {
                       return Tensors{transpose(m.x, {kB, kA})};
                     }); });
  expect_usage({"[cond] result 0 is float32", "they must agree (errors_building_test.cpp:"},
               [&] { cond(m.yes, one, [&] { return Tensors{cast(m.x, DType::float64)}; }); });
}

TEST_CASE("a bounded and a fixed dim of one name are told apart", "[errors]") {
  Graph g;
  const Dim bounded = Dim::bounded("n", 8), fixed("n", 8);
  const Tensor x = g.input("x", Shape{bounded}, DType::float32),
               y = g.input("y", Shape{fixed}, DType::float32);
  expect_usage({"[add] dim 'n' is n<=8 in operand 0 but n=8 in operand 1; dims of one name", kHere},
               [&] { x + y; });
  expect_usage({"[einsum] dim 'n' is n<=8 in operand 0 but n=8 in the result", kHere},
               [&] { einsum({x}, {fixed}); });
  expect_usage({"[broadcast] dim 'n' is n=8 in the operand but n<=8 in the result", kHere}, [&] {
    broadcast(y, {kA, bounded});
  });
}

TEST_CASE("an initializer that does not fit is an error of its parameter", "[errors]") {
  Inputs m;
  expect_usage({"[variance_scaling] the weights [a=4, b=6] have no dim 'q'", kHere,
                "the initializer of 'layer.w'"},
               [&] {
                 const Scope scope(m.g, "layer");
                 m.g.parameter("w", {kA, kB}, nn::he_normal({"q"}));
               });
}

TEST_CASE("updates of another dtype than what they are put into", "[errors]") {
  Inputs m;
  const Tensor at = m.g.input("at", Shape{Dim("k", 2)}, DType::int32),
               ints = m.g.input("ints", {Dim("k", 2), kB}, DType::int32),
               part = m.g.input("part", {Dim("a", 2), kB}, DType::int32);
  expect_usage({"[scatter] the updates are int32 and x is float32; they must agree", kHere},
               [&] { scatter(m.x, at, ints, "a"); });
  expect_usage({"[dynamic_update] the update is int32 and x is float32; they must agree", kHere},
               [&] { dynamic_update(m.x, part, m.n, "a"); });
}

TEST_CASE("layers and convolutions say which sizes they were given", "[errors]") {
  Inputs m;
  expect_usage({"[batch_norm] all dims of x [a=4, b=6] are channels", "at least one", kHere}, [&] {
    nn::batch_norm(m.x, "norm", {"a", "b"});
  });
  const Tensor q = m.g.input("q", {Dim("length", 8), Dim("d_head", 2)}, DType::float32),
               k = m.g.input("k", {Dim("length", 6), Dim("d_head", 2)}, DType::float32);
  nn::LocalOptions o;
  o.radius = 2;
  expect_usage({"[local_attention] the key has 6 places along 'length', the query has 8", kHere},
               [&] { nn::local_attention(q, k, k, o); });
  expect_usage({"[local_attention] the value has 6 places along 'length', the query has 8", kHere},
               [&] { nn::local_attention(q, q, k, o); });
  const Tensor f = m.g.input("f", {Dim("filter_b", 3)}, DType::float32);
  ConvDim dim{"b"};
  dim.size = 6;
  expect_usage({"[conv] size 6 of dim 'b' is given, but only conv_transpose()", kHere}, [&] {
    conv(m.x, f, {{dim}, Padding::same});
  });
}

TEST_CASE("axes that no layout can name", "[errors]") {
  expect_usage({"mesh axis 'auto': in a layout that stands for the planner's choice"},
               [] { Mesh::parse("auto:2"); });
  expect_usage({"mesh axis '-': in a layout that stands for no axis"}, [] { Mesh({{"-", 2}}); });
  for (const char c : std::string("+*@#,.;:= \t")) {
    expect_usage({std::string("no layout can name it, for '") + c + "' has a meaning of its own",
                  "take letters, digits and '_'"},
                 [&] {
                   Mesh({{std::string("a") + c + "b", 2}});
                 });
  }
  CHECK(Mesh::parse("a_1:2;a-b:2").rank() == 2);
}

TEST_CASE("numbers that a session cannot take", "[errors]") {
  Inputs m;
  Cluster ranks = Cluster::threads(1);
  CompileOptions options{Mesh::parse("p:1"), {}, {{"run", {m.x}, false}}};
  options.chunks = -1;
  expect_usage({"chunks is -1; 0 stands for as many as pay, 1 for none"},
               [&] { Session(m.g, ranks, options); });
  options.chunks = 0;
  Session s(m.g, ranks, options);
  expect_usage({"[set_step] step -1; steps are counted from 0"}, [&] { s.set_step(-1); });
  CHECK(s.step() == 0);
}

TEST_CASE("what a function makes that has not run", "[errors]") {
  for (const bool stores : {false, true}) {
    Graph g;
    const Tensor x = g.input("x", {kA}, DType::float32), y = (x * 2.0).named("y"),
                 z = (x + 1.0).named("z");
    if (stores) g.parameter("w", {kA}, nn::zeros());
    Cluster ranks = Cluster::threads(1);
    Session s(g, ranks, {Mesh::parse("p:1"), {}, {{"twice", {y}, false}, {"next", {z}, false}}});
    expect_usage({"'y' is made by the function 'twice', and nothing has run yet; run() 'twice'"},
                 [&] { s.fetch("y"); });
    s.feed("x", Array(DType::float32, {"a"}, {4}));
    s.run("next");
    expect_usage({"'y' is made by the function 'twice', and what ran last is 'next'"},
                 [&] { s.fetch("y"); });
    CHECK(s.fetch("z").at(0) == 1);
  }
}

}  // namespace TESSERA_FILE
