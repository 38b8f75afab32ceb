// Bounded dims that go by several names, or into dims of fixed size.
#include "ops/op_cases_run.h"
#include "support/expect_error.h"
#include "tessera/nn_attention.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace {

const char* kHere = "(bounded_test.cpp:";

/// x[n <= 8, m = 3] with five rows of 0 .. 14.
struct Five {
  Graph g;
  Clusters clusters;
  Dim n = Dim::bounded("n", 8), m = Dim("m", 3);
  Tensor x = g.input("x", {n, m}, DType::float64);

  Whole value(Tensor y, const std::string& layout, const std::string& dim = "n") {
    y.named("y" + std::to_string(g.nodes().size()));
    const Mesh mesh = Mesh::parse("a:2;b:2");
    Session session(g, clusters.of(4), {mesh, Layout::parse(layout), {{"f", {y}}}});
    session.set_size(dim, 5);
    Array rows(DType::float64, {"n", "m"}, {5, 3});
    for (int i = 0; i < 15; ++i) rows.data<double>()[i] = i;
    session.feed("x", rows);
    session.run("f");
    return whole_of(session.fetch(y.name()));
  }
};

}  // namespace

TEST_CASE("a renamed dim keeps the size of the run") {
  for (const char* layout : {"", "n:a", "r:a", "n:a;r:b", "m:a"}) {
    Five f;
    INFO(layout);
    const Tensor r = rename(f.x, "n", "r");
    const Tensor mean = reduce_mean(r, {"r", "m"});
    CHECK(f.value(mean, layout).data.at(0) == Approx(7));
    CHECK(f.value(mean, layout, "r").data.at(0) == Approx(7));
    CHECK(f.value(reduce_sum(rename(f.x * 0.0 + 1.0, "n", "r"), {"r", "m"}), layout).data ==
          std::vector<double>{15});
    const Tensor again = rename(rename(f.x, "n", "unseen"), "unseen", "r");
    CHECK(f.value(reduce_mean(again + 1.0, {"r", "m"}), layout).data.at(0) == Approx(8));
  }
}

TEST_CASE("attention over a renamed length sees what is there only") {
  Five f;
  const Tensor q = rename(rename(f.x, "n", "length"), "m", "d_head"),
               k = rename(rename(f.x, "n", "memory_length"), "m", "d_head"), ones = k * 0.0 + 1.0,
               y = attention(q, k, ones + 1.0);
  const Whole found = f.value(y, "length:a");
  CHECK(found.sizes == std::vector<int64_t>{5, 3});
  for (const double v : found.data) CHECK(v == Approx(2));
  // Were the padding attended to, its ones would count too.
  const Whole mean = f.value(attention(q * 0.0, k, k), "");
  for (int j = 0; j < 3; ++j) CHECK(mean.data[static_cast<size_t>(j)] == Approx(6 + j));
}

TEST_CASE("a bounded dim in dims of fixed size: zeros for what is not there") {
  for (const char* layout : {"", "t:a", "n:a;t:a+b", "m:b"}) {
    Five f;
    INFO(layout);
    const Whole flat = f.value(reshape(reciprocal(f.x + 1.0), {{"t", 24}}), layout);
    for (size_t i = 0; i < 24; ++i) CHECK(flat.data[i] == (i < 15 ? 1 / (1.0 + double(i)) : 0));
    const Whole fixed = f.value(reshape(f.x + 1.0, {{"t", 8}, {"u", 3}}), layout);
    for (size_t i = 0; i < 24; ++i) CHECK(fixed.data[i] == (i < 15 ? 1 + double(i) : 0));
  }
}

TEST_CASE("a bounded dim whose elements would not come first", "[errors]") {
  Five f;
  expect_usage({"[reshape] the dim 'n' of [n<=8, m=3] is bounded", "would not come first",
                "[p=3, n<=8]", "transpose()", kHere},
               [&] {
                 reshape(f.x, {Dim("p", 3), f.n});
               });
}

}  // namespace tessera::test
