// The role `routed`: what the partitioner makes of an op that it has never seen, and the variants
// of its Program.
#include <cmath>

#include "compile/lowering.h"
#include "compile/program_variants.h"
#include "ir/body.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "support/fed_experts.h"
#include "tessera/op.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

using Tensors = std::vector<Tensor>;

/// Two matrices for each of n groups, one behind the other, and no gates.
Tensors pairs_of_rows(const Tensors& in, const Attrs&, const std::string& groups, const Shape& out,
                      double used) {
  const Shape hidden = in[1].shape().united(Shape{in[2].dim("f")});
  return {grouped_dot(grouped_dot(in[0], in[2], in[1], groups, hidden, used), in[3], in[1], groups,
                      out, used)};
}

const Op kPairs = {
    .name = "pairs",
    .infer = [](const OpCall& call) -> std::vector<ValueType> { return {call.in[0]}; },
    .body = [](const Tensors& in, const Attrs& attrs) -> Tensors {
      return pairs_of_rows(in, attrs, "n", in[0].shape(), 1);
    },
    .routing =
        [](const Attrs&) {
          return Routing{"n", 1, 2};
        },
    .body_of_rows = pairs_of_rows};

struct Pairs {
  Pairs() {
    const Dim a("a", 8), b("b", 3), n("n", 6), f("f", 4);
    const Tensor x = g.input("x", {a, b}, DType::float64),
                 i = g.input("i", {a, Dim("k", 2)}, DType::int32);
    const auto matrix = [&](const char* name, const Shape& shape) {
      return g.parameter(name, shape, nn::normal(1), DType::float64);
    };
    y = g.add(kPairs, {x, i, matrix("up", {n, b, f}), matrix("down", {n, f, b})}, {},
              Loc::current())[0]
            .named("y");
  }
  CompileOptions options(const std::string& mesh, const std::string& layout) const {
    return {Mesh::parse(mesh), Layout::parse(layout), {{"f", {y}, false}}};
  }
  Array run(const std::string& mesh, const std::string& layout, std::string& program) const {
    const CompileOptions how = options(mesh, layout);
    Cluster ranks = Cluster::threads(how.mesh.size());
    Session session(g, ranks, how);
    Array x(DType::float64, {"a", "b"}, {8, 3}), i(DType::int32, {"a", "k"}, {8, 2});
    for (int64_t e = 0; e < x.elements(); ++e) x.data<double>()[e] = std::sin(0.7 * e);
    for (int64_t e = 0; e < i.elements(); ++e)
      i.data<int32_t>()[e] = static_cast<int32_t>(5 * e % 7) - 1;  // -1: no row
    session.feed("x", x);
    session.feed("i", i);
    session.run("f");
    program = session.program().text();
    return session.fetch("y");
  }
  Graph g;
  Tensor y;
};

TEST_CASE("an op that routes rows says so in its index space, and nothing else", "[ragged]") {
  const Pairs pairs;
  for (const Factor& factor :
       index_space(pairs.g, pairs.g.nodes()[static_cast<size_t>(pairs.g.value(pairs.y.id()).node)])
           .factors) {
    INFO(factor.name);
    CHECK(factor.role == (factor.name == "n"   ? Role::routed
                          : factor.name == "a" ? Role::map
                                               : Role::inside));
  }
}

TEST_CASE("rows of any op are dispatched to the ranks of their groups", "[ragged]") {
  const Pairs pairs;
  std::string program;
  const Array one = pairs.run("x:1", "", program);
  for (const auto& [mesh, layout, moves] :
       {std::tuple{"x:4", "a,n:x", true}, {"x:2;y:2", "a:x;n:x+y", true}, {"x:2", "n:x", false}}) {
    INFO(layout);
    const Array split = pairs.run(mesh, layout, program);
    CHECK((program.find("all_to_all") != std::string::npos) == moves);
    for (int64_t e = 0; e < one.elements(); ++e) CHECK(split.at(e) == Approx(one.at(e)));
  }
}

TEST_CASE("the variants of a Program are a list, up to places for all rows", "[ragged]") {
  const FedExperts model(6, 32);  // 256 rows of a rank, 128 places
  ProgramVariants variants(model.g, lowering_of(model.options("x:4", "batch,experts:x"),
                                                {{"train", {model.loss}, true}}));
  const uint64_t hash = variants.hash();
  const int64_t before = variants.program().transient_bytes;
  REQUIRE(variants.has_next());
  variants.next();
  CHECK(variants.growth() == 4);
  CHECK(variants.program().transient_bytes > before);
  CHECK(!variants.has_next());
  expect_error(ErrorKind::internal, {"a count exceeds the largest capacity"},
               [&] { variants.next(); });
  variants.back();
  CHECK(variants.growth() == 1);
  expect_error(ErrorKind::internal, {"no variant is smaller than the first"},
               [&] { variants.back(); });
  CHECK(variants.hash() == hash);
}

TEST_CASE("without a dispatch there is one variant", "[ragged]") {
  Graph g;
  const Tensor bound = within_bound(g.input("counts", {Dim("a", 4)}, DType::int32), 3).named("y");
  const CompileOptions options{Mesh::parse("x:2"), Layout::parse("a:x"), {{"f", {bound}, false}}};
  CHECK(!ProgramVariants(g, lowering_of(options, options.functions)).has_next());
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
