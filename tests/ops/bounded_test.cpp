// Bounded dims that go by several names, or into dims of fixed size.
#include <functional>

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

TEST_CASE("ops that need a fixed size take a bounded dim") {
  const std::vector<double> rows = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
  const auto row = [&](int i) { return i < 0 || i >= 5 ? -1.0 : 3.0 * i; };  // column 0
  for (const char* layout : {"", "n:a", "n:a;m:b", "n:a+b"}) {
    INFO(layout);
    const auto column = [&](const Whole& whole, int m = 3) {
      std::vector<double> values;
      for (size_t i = 0; i < whole.data.size(); i += static_cast<size_t>(m))
        values.push_back(whole.data[i]);
      return values;
    };
    using Values = std::vector<double>;
    const auto found = [&](const std::function<Tensor(const Five&, Tensor)>& build) {
      Five f;
      return column(f.value(build(f, f.x + 0.0), layout));
    };
    CHECK(found([](const Five&, Tensor x) { return slice(x, "n", 3, 4); }) ==
          Values{row(3), row(4), 0, 0});
    CHECK(found([](const Five&, Tensor x) { return pad(x, "n", 1, 1, 7); }) ==
          Values{7, row(0), row(1), row(2), row(3), row(4), 7, 7, 7, 7});
    CHECK(found([](const Five&, Tensor x) { return shift(x, "n", 2); }) ==
          Values{0, 0, row(0), row(1), row(2)});
    CHECK(found([](const Five&, Tensor x) { return shift(x, "n", -2); }) ==
          Values{row(2), row(3), row(4), 0, 0});
    CHECK(found([](const Five&, Tensor x) { return shift(x, "n", -2, true); }) ==
          Values{row(2), row(3), row(4), row(0), row(1)});
    CHECK(found([](const Five&, Tensor x) { return shift(x, "n", 6, true); }) ==
          Values{row(4), row(0), row(1), row(2), row(3)});
    CHECK(found([](const Five&, Tensor x) {
            return concat({x, x + 1.0}, "n");
          }) == Values{0, 3, 6, 9, 12, 1, 4, 7, 10, 13, 0, 0, 0, 0, 0, 0});
    CHECK(found([](const Five&, Tensor x) { return sort(x, "n", true); }) ==
          Values{12, 9, 6, 3, 0});
    CHECK(found([](const Five&, Tensor x) { return cast(argsort(-x, "n"), DType::float64); }) ==
          Values{4, 3, 2, 1, 0});
    CHECK(found([](const Five&, Tensor x) {
            return reduce_sum(sort(x, "n", true), {"n", "m"});  // no padding is summed
          }) == Values{105});
    CHECK(found([](const Five&, Tensor x) {
            return reduce_sum(shift(x, "n", 3), {"n", "m"});  // what was shifted out is gone
          }) == Values{15});
    CHECK(found([](const Five&, Tensor x) {
            Tensor ones = constant(x.graph(), 1, DType::float64, Shape{Dim("filter_n", 3)});
            return reduce_sum(conv(x, ones, {{{"n"}}}), {"n", "m"});
          }) == Values{3 * 105.0 - (0 + 1 + 2) - (12 + 13 + 14)});
    Five f;
    const Complex y = fft({f.x, {}}, "n"), back = fft(y, "n", true);
    const Whole round_trip = f.value(back.re, layout);
    for (size_t i = 0; i < 15; ++i) CHECK(round_trip.data[i] == Approx(rows[i]).margin(1e-9));
    Five h;
    const Complex z = fft({h.x, {}}, "n");
    CHECK(column(h.value(z.re, layout))[0] == Approx(30));
    Five e;
    CHECK(e.value(sum_all(slice(fft({e.x, {}}, "n").re, "n", 1, 4)), layout).data[0] ==
          Approx(4 * 3 * -7.5));
  }
}

TEST_CASE("a bounded dim merged with another has its multiple of the size") {
  for (const char* layout : {"", "t:a", "n:a"}) {
    Five f;
    INFO(layout);
    const Tensor flat = reshape(f.x, {Dim::bounded("t", 24)});
    const Tensor mean = reduce_mean(flat, "t");
    CHECK(f.value(mean, layout).data.at(0) == Approx(7));
  }
}

TEST_CASE("a mean of groups of a bounded dim counts what is there") {
  Five f;
  const Whole mean = f.value(nn::compress_mean(f.x, "n", 2), "");
  CHECK(mean.sizes == std::vector<int64_t>{4, 3});
  for (size_t j = 0; j < 3; ++j) {
    const double d = static_cast<double>(j);
    CHECK(mean.data[j] == Approx(1.5 + d));
    CHECK(mean.data[6 + j] == Approx(12 + d));  // a group of one
    CHECK(mean.data[9 + j] == 0);               // and one of none
  }
}

TEST_CASE("an input expires with its size, and so does an output") {
  for (const char* layout : {"", "n:a"}) {
    Five f;
    const Tensor sum = reduce_sum(f.x, {"n", "m"}).named("sum"), twice = (f.x * 2.0).named("twice");
    Session session(f.g, f.clusters.of(2),
                    {Mesh::parse("a:2"), Layout::parse(layout), {{"f", {sum, twice}}}});
    const auto feed = [&](int64_t n) {
      Array rows(DType::float64, {"n", "m"}, {n, 3});
      for (int64_t i = 0; i < 3 * n; ++i) rows.data<double>()[i] = 1;
      session.feed("x", rows);
    };
    feed(8);
    session.run("f");
    session.set_size("n", 2);
    expect_usage({"'twice' has its value from when the dim 'n' had size 8", "run() again"},
                 [&] { session.fetch("twice"); });
    CHECK(session.fetch_scalar("sum") == 24);
    expect_usage(
        {"'f' reads the input 'x', which was fed when the dim 'n' had size 8", "feed() it again"},
        [&] { session.run("f"); });
    feed(2);
    session.run("f");
    CHECK(session.fetch_scalar("sum") == 6);
    CHECK(session.fetch("twice").elements() == 6);
    session.set_size("n", 2);  // the same
    CHECK(session.fetch("twice").elements() == 6);
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
