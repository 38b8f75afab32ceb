#include "tessera/function_updates.h"

#include "support/catch.h"
#include "support/expect_error.h"
#include "tessera/tessera.h"

using namespace tessera;
using test::expect_usage;

TEST_CASE("functions update one state in different ways", "[function_updates]") {
  Graph g;
  const Dim n("n", 3);
  Tensor count = g.state("count", {n}, nn::zeros()), all = g.state("all", {n}, nn::zeros());
  update_in("add", count, count + 1.0);
  update_in("double", count, count * 2.0);
  g.update(all, all + 1.0);
  Tensor shown = identity(count).named("shown");
  Cluster ranks = Cluster::threads(2);
  Session session(g, ranks,
                  {Mesh::parse("a:2"),
                   Layout::parse("n:a"),
                   {{"add", {shown}, true}, {"double", {shown}, true}, {"look", {shown}, false}}});
  for (const std::string f : {"add", "add", "double", "look", "add"}) session.run(f);
  CHECK(session.fetch("count").at(2) == 5);
  CHECK(session.fetch("all").at(2) == 4);
}

TEST_CASE("updates of functions that cannot be are usage errors", "[function_updates][errors]") {
  Graph g, other;
  const Dim n("n", 3);
  Tensor a = g.state("a", {n}, nn::zeros()), b = g.state("b", {n}, nn::zeros());
  Tensor x = other.state("x", {n}, nn::zeros());
  update_in("f", a, a + 1.0);
  g.update(b, b + 1.0);
  expect_usage({"'a' is updated twice", "one update per run"}, [&] { update_in("f", a, a); });
  expect_usage({"'a' is updated twice"}, [&] { g.update(a, a); });
  expect_usage({"'b' is updated twice"}, [&] { update_in("f", b, b); });
  expect_usage({"[update_in] 'x' belongs to another graph"}, [&] { update_in("g", a, x); });
  expect_usage({"update() of 'a_1', which is not a parameter or state"},
               [&] { update_in("g", (a + 1.0).named("a_1"), a); });
  Graph only;
  Tensor s = only.state("s", {n}, nn::zeros());
  update_in("f", s, s + 1.0);
  Cluster one = Cluster::threads(1);
  expect_usage({"the function 'g' is to update, and the model has no update"}, [&] {
    Session(only, one, {Mesh::parse("a:1"), {}, {{"g", {s}, true}}});
  });
}
