// Bounded dims that go by several names, or into dims of fixed size.
#include <functional>

#include "ops/op_cases_run.h"
#include "support/expect_error.h"
#include "tessera/nn_attention.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

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

TEST_CASE("local attention along a bounded length sees what is there only") {
  for (const bool causal : {false, true}) {
    for (const int64_t block : {2, 3, 4}) {  // 3: the last block is cut
      const nn::LocalOptions options{
          .radius = 2, .causal = causal, .block = block, .length = "n", .key_dim = "m"};
      const auto attended = [&](const Tensor& x) {
        return nn::local_attention(x * 0.1, x * 0.1, x + 1.0, options);
      };
      Graph g;  // the same five rows and no bound
      Tensor x = g.input("x", {Dim("n", 5), Dim("m", 3)}, DType::float64);
      Tensor y = attended(x).named("y");
      Cluster one = Cluster::threads(1);
      Session fixed(g, one, {Mesh::parse("a:1"), Layout::parse(""), {{"f", {y}}}});
      Array rows(DType::float64, {"n", "m"}, {5, 3});
      for (int i = 0; i < 15; ++i) rows.data<double>()[i] = i;
      fixed.feed("x", rows);
      fixed.run("f");
      const Array want = fixed.fetch("y");
      for (const char* layout : {"", "n:a", "length_blocks:a", "m:b"}) {
        INFO("causal " << causal << ", block " << block << ", layout " << layout);
        Five f;
        const Tensor bounded = attended(f.x);
        CHECK(bounded.shape() == f.x.shape());
        const Whole found = f.value(bounded, layout);
        CHECK(found.sizes == std::vector<int64_t>{5, 3});
        for (size_t i = 0; i < 15; ++i)
          CHECK(found.data.at(i) == Approx(want.at(static_cast<int64_t>(i))));
        double sum = 0;
        for (int64_t i = 0; i < 15; ++i) sum += want.at(i);
        CHECK(f.value(reduce_mean(bounded, {"n", "m"}), layout).data.at(0) == Approx(sum / 15));
        CHECK(f.value(reduce_sum(f.x + bounded, {"n", "m"}), layout).data.at(0) ==
              Approx(sum + 105));
      }
    }
  }
  Five f;
  Tensor fixed = f.g.input("fixed", {Dim("n", 8), f.m}, DType::float64);
  expect_usage(
      {"[local_attention] the key has [n=8, m=3] along 'n', the query has [n<=8]", kHere},
      [&] { nn::local_attention(f.x, fixed, f.x, {.radius = 2, .length = "n", .key_dim = "m"}); });
}

TEST_CASE("what cannot take a bounded dim says what to do", "[errors]") {
  Five f;
  Tensor filter =
      f.g.parameter("filter", {Dim("k", 3), f.m, Dim("o", 2)}, nn::ones(), DType::float64);
  expect_usage(
      {"[conv_transpose] dim 'n' is bounded", "reshape() it to a dim of fixed size", kHere}, [&] {
        conv_transpose(f.x, filter, {.dims = {{"n", "k"}}});
      });
  const Dim a = Dim::bounded("a", 6), b = Dim::bounded("b", 5);
  Tensor x = f.g.input("two", {a, b}, DType::float64);
  expect_usage({"[reshape] the dim 'b' of [a<=6, b<=5] is bounded",
                "made of one bounded dim and fixed ones behind it",
                "reshape() 'b' to a dim of fixed", kHere},
               [&] { reshape(x, {Dim::bounded("ab", 30)}); });
  Tensor cut = reshape(x, {a, Dim("b", 5)});
  CHECK(reshape(cut, {Dim::bounded("ab", 30)}).shape().rank() == 1);
  Tensor y = f.g.input("behind", {f.m, a}, DType::float64);
  expect_usage({"[reshape] the dim 'a' of [m=3, a<=6] is bounded", "transpose() before"},
               [&] { reshape(y, {Dim::bounded("ma", 18)}); });
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

TEST_CASE("an eager graph and every layout compute bounded dims as one rank does") {
  const Dim n = Dim::bounded("n", 8), m("m", 3), k("k", 7), t = Dim::bounded("t", 24);
  const auto ones = [](Tensor x, const Dim& dim) {
    return constant(x.graph(), 1, x.dtype(), Shape{dim});
  };
  const std::vector<std::pair<const char*, std::function<Tensor(Tensor)>>> cases = {
      {"rename", [&](Tensor x) { return rename(x, "n", "r"); }},
      {"mean", [&](Tensor x) { return reduce_mean(rename(x, "n", "r"), "r"); }},
      {"flat", [&](Tensor x) { return reshape(x + 1.0, {Dim("t", 24)}); }},
      {"flat bounded", [&](Tensor x) { return reduce_mean(reshape(x, {t}), "t"); }},
      {"split",
       [&](Tensor x) {
         return reshape(reshape(x, {t}), {Dim::bounded("u", 8), m});
       }},
      {"fixed",
       [&](Tensor x) {
         return reshape(x + 1.0, {Dim("v", 8), m});
       }},
      {"slice", [&](Tensor x) { return slice(x, n, 3, 4); }},
      {"pad", [&](Tensor x) { return pad(x, n, 1, 1, 7); }},
      {"shift", [&](Tensor x) { return shift(x, n, -2, true); }},
      {"concat",
       [&](Tensor x) {
         return concat({x, x + 1.0}, n);
       }},
      {"sort", [&](Tensor x) { return sort(-x - 1.0, n, true); }},
      {"argsort", [&](Tensor x) { return argsort(-x, n); }},
      {"argmax", [&](Tensor x) { return argmax(-x - 1.0, n); }},
      {"argmin", [&](Tensor x) { return argmin(x + 1.0, n); }},
      {"top_k", [&](Tensor x) { return top_k(-x - 1.0, n, k).values; }},
      {"top_k indices", [&](Tensor x) { return top_k(-x - 1.0, n, k).indices; }},
      {"cumsum", [&](Tensor x) { return cumsum(x + 1.0, n, true, true); }},
      {"sum of cumsum", [&](Tensor x) { return reduce_sum(cumsum(x + 1.0, n) * 0.5, n); }},
      {"gather of cumsum",
       [&](Tensor x) {
         Tensor w = x.graph().parameter("w", {m}, nn::ones(), x.dtype());
         Tensor y = gather(w, mod(iota(x.graph(), n), constant(x.graph(), 3, DType::int32)), "m");
         return gradients(sum_all(cumsum(y, n, false, true) * 2.0), {w})[0];
       }},
      {"softmax", [&](Tensor x) { return softmax(x * 0.1, n); }},
      {"product", [&](Tensor x) { return reduce_prod(x + 1.0, n); }},
      {"maximum", [&](Tensor x) { return reduce_max(-x - 1.0, n); }},
      {"logsumexp", [&](Tensor x) { return reduce_logsumexp(x, n); }},
      {"fft",
       [&](Tensor x) {
         return fft({x, {}}, n).re;
       }},
      {"conv",
       [&](Tensor x) {
         return conv(x, ones(x, Dim("f", 3)), {{{"n", "f"}}});
       }},
      {"scatter_add",
       [&](Tensor x) {
         Tensor row = mod(iota(x.graph(), n), constant(x.graph(), 2, DType::int32));
         return scatter_add(row, x, {Dim("row", 2), m}, "row");
       }},
      {"one_hot", [&](Tensor x) { return one_hot(argmax(x, n), n, 1, 0, x.dtype()); }},
      {"dim_size", [&](Tensor x) { return x * dim_size(x.graph(), n, x.dtype()); }},
      {"attention",
       [&](Tensor x) {
         Tensor q = rename(rename(x, "n", "length"), "m", "d_head");
         Tensor keys = rename(q, "length", "memory_length");
         return attention(q * 0.1, keys, keys);
       }},
      {"gradient of sort",
       [&](Tensor x) {
         return gradients(sum_all(sort(x, n) * (iota(x.graph(), n, x.dtype()) + 1.0)), {x})[0];
       }},
      {"gradient of cumsum",
       [&](Tensor x) { return gradients(sum_all(square(cumsum(x, n))), {x})[0]; }}};
  Array rows(DType::float64, {"n", "m"}, {5, 3});
  for (int i = 0; i < 15; ++i) rows.data<double>()[i] = (7 * i) % 15;
  for (const auto& [name, build] : cases) {
    Whole one;
    for (const char* layout : {"", "n:a", "n:a;m:b", "n:a+b", "m:a"}) {
      INFO(name << " " << layout);
      Graph g;
      Tensor y = build(g.input("x", {n, m}, DType::float64)).uniquely_named("y");
      Clusters clusters;
      Session session(g, clusters.of(4),
                      {Mesh::parse("a:2;b:2"), Layout::parse(layout), {{"f", {y}}}});
      session.set_size("n", 5);
      session.feed("x", rows);
      session.run("f");
      const Whole found = whole_of(session.fetch(y.name()));
      if (layout[0] == 0) one = found;
      CHECK(relative_error(found, one) < 1e-12);
    }
    INFO(name);
    Graph g({.eager = true});
    g.feed("x", rows);
    const Whole eager = whole_of(g.fetch(build(g.input("x", {n, m}, DType::float64))));
    CHECK(relative_error(eager, one) < 1e-12);
  }
}

TEST_CASE("a fixed dim that becomes a bounded one is cut to the size of the run") {
  for (const char* layout : {"", "n:a", "m:a", "n:a+b"}) {
    Five f;
    INFO(layout);
    const Tensor fixed = constant(f.g, 1, DType::float64, {Dim("n", 8), f.m});
    const Tensor sum = reduce_sum(reshape(fixed, {f.n, f.m}), {"n", "m"});
    CHECK(f.value(sum + reduce_sum(f.x * 0.0, {"n", "m"}), layout).data.at(0) == 15);
  }
}

TEST_CASE("sizes of bounded dims that no tensor of the program has") {
  Graph g;
  const Dim m("m", 2), n = Dim::bounded("n", 8), only = Dim::bounded("only", 6);
  Tensor x = g.input("x", {m}, DType::float64);
  g.input("unread", {n, m}, DType::float64);
  Tensor y = (x * dim_size(g, only, DType::float64)).named("y");
  Cluster one = Cluster::threads(1);
  Session session(g, one, {Mesh::parse("a:1"), {}, {{"f", {y}}}});
  session.feed("x", Array(DType::float64, {"m"}, {2}));
  Array ones = Array(DType::float64, {"m"}, {2});
  ones.data<double>()[0] = ones.data<double>()[1] = 1;
  session.feed("x", ones);
  session.run("f");
  CHECK(session.fetch("y").at(0) == 6);
  session.set_size("only", 4);
  session.set_size("n", 3);
  session.feed("unread", Array(DType::float64, {"n", "m"}, {3, 2}));
  expect_usage({"'unread' has the sizes [3, 2]", "[8, 2]"}, [&] {
    session.feed("unread", Array(DType::float64, {"n", "m"}, {8, 2}));
  });
  session.run("f");
  CHECK(session.fetch("y").at(0) == 4);
}

TEST_CASE("a bounded dim whose elements would not come first", "[errors]") {
  Five f;
  expect_usage({"[reshape] the dim 'n' of [n<=8, m=3] is bounded", "would not come first",
                "[p=3, n<=8]", "transpose()", kHere},
               [&] {
                 reshape(f.x, {Dim("p", 3), f.n});
               });
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
