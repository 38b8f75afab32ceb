// Values at the edges of a type: NaN, infinity, bool, 16 bits, and what has no place in a type.
// Split unevenly they are what they are unsplit.
#include <cmath>
#include <functional>
#include <limits>
#include <sstream>

#include "support/expect_error.h"
#include "tessera/tessera.h"

using namespace tessera;
using test::expect_usage;

namespace TESSERA_FILE {

const double kNan = std::numeric_limits<double>::quiet_NaN();
const double kInf = std::numeric_limits<double>::infinity();
const Dim n("n", 5);

Array array_of(DType dtype, const std::vector<std::string>& dims, const std::vector<int64_t>& sizes,
               const std::vector<double>& values) {
  Array a(dtype, dims, sizes);
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::float32) a.data<float>()[i] = static_cast<float>(values[i]);
    if (dtype == DType::float64) a.data<double>()[i] = values[i];
    if (dtype == DType::int32) a.data<int32_t>()[i] = static_cast<int32_t>(values[i]);
    if (dtype == DType::bool_) a.data<uint8_t>()[i] = values[i] != 0;
  }
  return a;
}

using Build = std::function<Tensor(Graph&, Tensor)>;

/// What `build` makes of x [n], on as many ranks, each with a part of n.
std::vector<double> result_of(const Build& build, DType dtype, const std::vector<double>& x,
                              int ranks) {
  Graph g;
  const Dim dim("n", std::ssize(x));
  Tensor in = g.input("x", {dim}, dtype);
  Tensor y = build(g, in).named("y"),
         read = identity(in);  // also where the result does not need it
  Cluster cluster = Cluster::threads(ranks);
  const Layout layout = Layout::parse(ranks > 1 ? "n:a" : "");
  Session session(g, cluster,
                  {Mesh::parse("a:" + std::to_string(ranks)), layout, {{"f", {y, read}, false}}});
  session.feed("x", array_of(dtype, {"n"}, {dim.size}, x));
  session.run("f");
  const Array out = session.fetch("y");
  std::vector<double> values;
  for (int64_t i = 0; i < out.elements(); ++i) values.push_back(out.at(i));
  return values;
}

void check_everywhere(const Build& build, DType dtype, const std::vector<double>& x,
                      const std::vector<double>& expected) {
  for (int ranks : {1, 2, 3}) {
    const std::vector<double> found = result_of(build, dtype, x, ranks);
    REQUIRE(found.size() == expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      INFO(ranks << " ranks, element " << i);
      CHECK((found[i] == expected[i] || (std::isnan(found[i]) && std::isnan(expected[i]))));
    }
  }
}

/// A Build of an op along n.
template <class F>
Build along(F op) {
  return [op](Graph&, Tensor x) { return op(x, "n"); };
}

TEST_CASE("values: NaN and infinity in order, split unevenly", "[fast]") {
  const std::vector<double> x = {3, kNan, 1, kInf, 2}, all_nan = {kNan, kNan, kNan, kNan, kNan};
  for (DType t : {DType::float32, DType::float64}) {
    check_everywhere([](Graph&, Tensor v) { return sort(v, "n"); }, t, x, {1, 2, 3, kInf, kNan});
    check_everywhere([](Graph&, Tensor v) { return argsort(v, "n"); }, t, x, {2, 4, 0, 3, 1});
    check_everywhere([](Graph&, Tensor v) { return sort(v, "n", true); }, t, x,
                     {kNan, kInf, 3, 2, 1});
    check_everywhere([](Graph&, Tensor v) { return nth_smallest(v, "n", 4); }, t, x, {kNan});
    check_everywhere([](Graph&, Tensor v) { return argmin(v, "n"); }, t, all_nan, {0});
    check_everywhere([](Graph&, Tensor v) { return argmax(v, "n"); }, t, all_nan, {0});
    check_everywhere([](Graph&, Tensor v) { return argmax(v, "n"); }, t,
                     {-kInf, -kInf, -kInf, -kInf, -kInf}, {0});
  }
}

TEST_CASE("values: NaN is chosen, and what is computed of it is NaN", "[fast]") {
  const std::vector<std::vector<double>> rows = {
      {3, kNan, 1, kInf, kNan, 2, -kInf}, {kNan, 3, -1, 0, 1, 2, 4}, {3, 1, -kInf, 0, 1, 2, kNan}};
  for (const std::vector<double>& x : rows) {
    const auto first = static_cast<double>(
        std::find_if(x.begin(), x.end(), [](double v) { return std::isnan(v); }) - x.begin());
    for (DType t : {DType::float32, DType::float64, DType::bfloat16, DType::float16}) {
      const bool narrow = is_narrow(t);
      const auto is = [&](const char* what, auto op, std::vector<double> expected) {
        INFO(what << " of " << to_string(t));
        check_everywhere(
            [op, narrow, t](Graph&, Tensor v) {
              const Tensor y = op(narrow ? cast(v, t) : v);
              return is_narrow(y.dtype()) ? cast(y, DType::float32) : y;
            },
            narrow ? DType::float32 : t, x, expected);
      };
      is("argmax", [](Tensor v) { return argmax(v, "n"); }, {first});
      is("argmin", [](Tensor v) { return argmin(v, "n"); }, {first});
      is("top_k", [](Tensor v) { return slice(top_k(v, "n", Dim("k", 3)).indices, "k", 0, 1); },
         {first});
      is("reduce_max", [](Tensor v) { return reduce_max(v, "n"); }, {kNan});
      is("reduce_min", [](Tensor v) { return reduce_min(v, "n"); }, {kNan});
      is("nth_largest", [](Tensor v) { return nth_largest(v, "n", 0); }, {kNan});
      is("nth_smallest", [](Tensor v) { return nth_smallest(v, "n", 6); }, {kNan});
      is("maximum", [](Tensor v) { return reduce_sum(maximum(v, 0.0) + maximum(0.0, v), "n"); },
         {kNan});
      is("minimum", [](Tensor v) { return reduce_sum(minimum(v, 0.0) + minimum(0.0, v), "n"); },
         {kNan});
      is("clip", [](Tensor v) { return reduce_sum(clip(v, -1, 1), "n"); }, {kNan});
      is("relu", [](Tensor v) { return reduce_sum(relu(v), "n"); }, {kNan});
      is("softmax", [](Tensor v) { return slice(softmax(v, "n"), "n", 0, 1); }, {kNan});
      is("max_pool",
         [](Tensor v) {
           return reduce_max(max_pool(v, {.dims = {{"n"}}, .padding = Padding::same}), "n");
         },
         {kNan});
    }
  }
}

TEST_CASE("values: bool in order, its largest and smallest, and looked up", "[fast]") {
  const std::vector<double> none = {0, 0, 0, 0, 0}, all = {1, 1, 1, 1, 1}, some = {1, 1, 0, 1, 1};
  const DType t = DType::bool_;
  check_everywhere([](Graph&, Tensor v) { return reduce_max(v, "n"); }, t, none, {0});
  check_everywhere([](Graph&, Tensor v) { return reduce_min(v, "n"); }, t, all, {1});
  check_everywhere([](Graph&, Tensor v) { return argmax(v, "n"); }, t, none, {0});
  check_everywhere([](Graph&, Tensor v) { return top_k(v, "n", Dim("k", 2)).indices; }, t, none,
                   {0, 1});
  check_everywhere([](Graph&, Tensor v) { return argsort(v, "n", true); }, t, some,
                   {0, 1, 3, 4, 2});
  check_everywhere(
      [](Graph& g, Tensor v) { return gather(v, iota(g, Dim("i", 3), DType::int32) + 1.0, "n"); },
      t, some, {1, 0, 1});
  check_everywhere(
      [](Graph& g, Tensor v) { return dynamic_slice(v, constant(g, 2, DType::int32), "n", 2); }, t,
      some, {0, 1});
}

TEST_CASE("values: elu and selu keep their precision near 0", "[fast]") {
  const double alpha = 1.6732632423543772, scale = 1.0507009873554805;
  for (DType t : {DType::float32, DType::float64}) {
    const double most = t == DType::float32 ? 5e-7 : 1e-15;
    for (const double x : {-1e-30, -1e-8, -1e-4, -0.01, -0.5, -1.2, -1.3, -3.0, -20.0, -kInf}) {
      const double near = t == DType::float32 ? static_cast<float>(x) : x;
      const double elus = result_of([](Graph&, Tensor v) { return elu(v); }, t, {x}, 1)[0];
      const double selus = result_of([](Graph&, Tensor v) { return selu(v); }, t, {x}, 1)[0];
      INFO(to_string(t) << " " << x);
      CHECK(std::abs(elus / std::expm1(near) - 1) <= most);
      CHECK(std::abs(selus / (scale * alpha * std::expm1(near)) - 1) <= most);
    }
  }
}

TEST_CASE("values: what a type cannot hold is refused where it is built", "[errors]") {
  Graph g;
  Tensor i = g.input("i", {n}, DType::int32), b = g.input("b", {n}, DType::bool_);
  expect_usage({"[mul] 0.5 is no int32", "cast()", "values_test.cpp"}, [&] { i * 0.5; });
  expect_usage({"1.5 is no int32"}, [&] { i < 1.5; });
  for (const std::function<void()>& quotient :
       std::vector<std::function<void()>>{[&] { i / 2.0; }, [&] { 2.0f / i; }})
    expect_usage({"[div] i is int32, and 2.0 is a floating number", "floor_div()", "cast()",
                  "values_test.cpp"},
                 quotient);
  CHECK_NOTHROW(i / 2);
  CHECK_NOTHROW(2 / i);
  expect_usage({"[maximum] 0.5 is no int32", "values_test.cpp"}, [&] { maximum(i, 0.5); });
  expect_usage({"[mod] 0.5 is no int32", "values_test.cpp"}, [&] { mod(0.5, i); });
  expect_usage({"[clip] 0.5 is no int32", "values_test.cpp"}, [&] { clip(i, 0.5, 2); });
  expect_usage({"[leaky_relu] 0.2 is no int32", "values_test.cpp"}, [&] { leaky_relu(i); });
  expect_usage({"[selu] the operand is int32; it must be floating"}, [&] { selu(i); });
  expect_usage({"[pad] 0.5 is no int32", "values_test.cpp"}, [&] { pad(i, "n", 1, 0, 0.5); });
  expect_usage({"[windows] 0.5 is no int32", "values_test.cpp"},
               [&] { windows(i, "n", Dim("k", 2), {.before = 1, .fill = 0.5}); });
  expect_usage({"nan is no int32"}, [&] { constant(g, kNan, DType::int32); });
  expect_usage({"-1 is no uint8"}, [&] { constant(g, -1, DType::uint8); });
  expect_usage({"3000000000 is no int32"}, [&] { constant(g, 3e9, DType::int32); });
  expect_usage({"2 is no bool"}, [&] { constant(g, 2, DType::bool_); });
  expect_usage({"[reduce_mean] x is int32", "cast()"}, [&] { reduce_mean(i, "n"); });
  for (const std::function<void()>& arithmetic : std::vector<std::function<void()>>{
           [&] { add(b, b); }, [&] { neg(b); }, [&] { cumsum(b, "n"); },
           [&] { reduce_sum(b, "n"); }, [&] { reduce_prod(b, "n"); },
           [&] {
             einsum({b, b});
           },
           [&] { scatter_add(i, b, {Dim("m", 3)}, "m"); }})
    expect_usage({"bool has no arithmetic", "cast()", "values_test.cpp"}, arithmetic);
}

TEST_CASE("values: means, exponents and random numbers at the edges of a type", "[fast]") {
  check_everywhere(
      [](Graph&, Tensor x) { return cast(reduce_mean(cast(x, DType::float16), "n"), x.dtype()); },
      DType::float32, {30000, 30000, 30000, 30000, 30000}, {30000});
  check_everywhere(along([](Tensor x, const char* dim) { return reduce_logsumexp(x, dim); }),
                   DType::float64, {1, kInf, 2, 3, 4}, {kInf});
  check_everywhere(along([](Tensor x, const char* dim) { return reduce_logsumexp(x, dim); }),
                   DType::float64, {-kInf, -kInf, -kInf, -kInf, -kInf}, {-kInf});
  for (DType t : {DType::bfloat16, DType::float16}) {
    const std::vector<double> most = result_of(
        [t](Graph& g, Tensor) {
          const Dim many("many", 200000);
          const Tensor u = random_uniform(g, {many}, 0, 1, t),
                       v = random_uniform(g, {many}, -3, -1, t);
          return stack({cast(reduce_max(u, "many"), DType::float32),
                        cast(reduce_min(u, "many"), DType::float32),
                        cast(reduce_max(v, "many"), DType::float32)},
                       "which");
        },
        DType::float32, {0}, 1);
    CHECK(most[0] < 1);
    CHECK(most[0] > 0.99);
    CHECK(most[1] >= 0);
    CHECK(most[2] < -1);
  }
}

TEST_CASE("values: gradients at the edges", "[fast]") {
  const auto slope = [](const Build& f) {
    return [f](Graph& g, Tensor x) { return gradients(sum_all(f(g, x)), {x})[0]; };
  };
  check_everywhere(slope([](Graph&, Tensor x) { return clip(x, -1, 1); }), DType::float64,
                   {-2, -1, 0, 1, 2}, {0, 1, 1, 1, 0});
  check_everywhere(slope([](Graph& g, Tensor x) { return pow(x, constant(g, 0, x.dtype())); }),
                   DType::float64, {0, 1, 2, 3, 4}, {0, 0, 0, 0, 0});
  check_everywhere(slope([](Graph& g, Tensor x) { return mod(x, constant(g, 2, x.dtype())); }),
                   DType::float64, {0.5, 1.5, 2.5, -0.5, 7}, {1, 1, 1, 1, 1});
}

TEST_CASE("values: a fed array's dims are found by name", "[fast]") {
  Graph g;
  const Dim a("a", 2), b("b", 2);
  Tensor x = g.input("x", {a, b}, DType::float32);
  Tensor y = (x + 0.0).named("y");
  Cluster cluster = Cluster::threads(2);
  Session session(g, cluster, {Mesh::parse("m:2"), Layout::parse("b:m"), {{"f", {y}, false}}});
  session.feed("x", array_of(DType::float32, {"b", "a"}, {2, 2}, {1, 2, 3, 4}));
  session.run("f");
  const Array found = session.fetch("y");
  for (int i = 0; i < 4; ++i) CHECK(found.at(i) == std::vector<double>{1, 3, 2, 4}[size_t(i)]);
  expect_usage({"'x' has the dims [a, b]", "the array has [a, c]"}, [&] {
    session.feed("x", array_of(DType::float32, {"a", "c"}, {2, 2}, {1, 2, 3, 4}));
  });
  session.feed("x", array_of(DType::float32, {}, {2, 2}, {1, 2, 3, 4}));
  session.run("f");
  CHECK(session.fetch("y").at(1) == 2);
}

TEST_CASE("values: parts of a float16 sum may exceed its range where the sum does not", "[fast]") {
  for (const char* layout : {"", "n:a", "n:a; m:b", "n:a+b"}) {
    INFO(layout);
    Graph g;
    const Dim wide("n", 8), m("m", 2);
    Tensor x = g.input("x", {wide, m}, DType::float16);
    Tensor w = g.parameter("w", {m}, nn::ones());
    Tensor y = x * cast(w, DType::float16);
    Tensor sum = reduce_sum(y, "n"), product = einsum({y, ones_like(x)}, {m}),
           loss = sum_all(cast(sum, DType::float32) + cast(product, DType::float32));
    const Tensor grad = minimize(loss, 0.0, sgd()).gradients[0];
    const std::vector<Tensor> outputs = {cast(sum, DType::float32).named("sum"),
                                         cast(product, DType::float32).named("product"), grad};
    Cluster ranks = Cluster::threads(4);
    const CompileOptions options{
        Mesh::parse("a:2;b:2"), Layout::parse(layout), {{"f", outputs, true}}};
    Session session(g, ranks, options);
    session.feed_slices("x", [&](const Slice& slice) {
      for (int64_t i = 0; i < slice.valid[0]; ++i) {
        for (int64_t j = 0; j < slice.valid[1]; ++j) {
          const bool first = slice.offset[0] + i < 4;  // 30000 and -30000
          static_cast<uint16_t*>(slice.data)[i * slice.strides[0] + j * slice.strides[1]] =
              first ? 0x7753 : 0xF753;
        }
      }
    });
    session.run("f");
    for (const Tensor& t : outputs) {
      const Array found = session.fetch(t.name());
      for (int64_t i = 0; i < found.elements(); ++i) CHECK(found.at(i) == 0);
    }
    const std::string text = session.program().text();
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
      CHECK((line.find(" = all_reduce") == std::string::npos ||
             line.find(":float16") == std::string::npos));
  }
}

TEST_CASE("values: a bad index stores nothing, and its Session goes on", "[fast]") {
  for (int ranks : {1, 2, 3}) {
    Graph g;
    const Dim v("v", 4);
    Tensor i = g.input("i", {n}, DType::int32);
    Tensor table = g.parameter("table", {v}, nn::zeros());
    Tensor y = gather(table, i, "v").named("y");
    g.update(table, table + 1.0);
    Cluster cluster = Cluster::threads(ranks);
    const CompileOptions options{Mesh::parse("a:" + std::to_string(ranks)),
                                 Layout::parse(ranks > 1 ? "n:a" : ""),
                                 {{"f", {y}, true}}};
    Session before(g, cluster, options), session(g, cluster, options);
    for (int time = 0; time < 2; ++time) {
      session.feed("i", array_of(DType::int32, {"n"}, {5}, {0, 1, 2, 3, 9}));
      expect_usage({"[gather] index 9", "is outside [0, 4)", "OutOfRange", "nothing was stored"},
                   [&] { session.run("f"); });
      CHECK(session.fetch("table").at(0) == time);
      for (Session* s : {&before, &session}) {
        s->feed("i", array_of(DType::int32, {"n"}, {5}, {3, 2, 1, 0, 3}));
        s->run("f");
        CHECK(s->fetch("y").at(0) == time);
      }
    }
  }
}

TEST_CASE("values: segments of attention do not go back", "[fast]") {
  for (int ranks : {1, 2}) {
    Graph g;
    const Dim batch("batch", 2), length("length", 6), d_head("d_head", 2);
    Tensor ids = g.input("ids", {batch, length}, DType::int32);
    Tensor x = cast(broadcast(iota(g, length), {batch, length, d_head}), DType::float32);
    AttentionOptions o;
    o.segments = ids;
    Tensor keys = rename(x, "length", "memory_length");
    Tensor y = attention(x * 0.0, keys, keys, {}, o).named("y");
    Cluster cluster = Cluster::threads(ranks);
    Session session(g, cluster,
                    {Mesh::parse("a:" + std::to_string(ranks)),
                     Layout::parse(ranks > 1 ? "batch:a" : ""),
                     {{"f", {y}, false}}});
    const auto feed = [&](const std::vector<double>& second) {
      std::vector<double> all = {1, 1, 1, 1, 1, 1};
      all.insert(all.end(), second.begin(), second.end());
      session.feed("ids", array_of(DType::int32, {"batch", "length"}, {2, 6}, all));
    };
    feed({1, 3, 3, 2, 2, 0});
    expect_usage({"[attention] the segments of the queries go back from 3 to 2 at position 3",
                  "number the documents of a row upwards", "values_test.cpp:"},
                 [&] { session.run("f"); });
    feed({1, 0, 2, 2, 2, 2});
    expect_usage({"go back from 1 to 0 at position 1"}, [&] { session.run("f"); });
    feed({0, 2, 2, 7, 0, 0});
    session.run("f");
    const std::vector<double> means = {0, 1.5, 1.5, 3, 0, 0};
    for (size_t i = 0; i < means.size(); ++i)
      CHECK(session.fetch("y").at(static_cast<int64_t>(12 + 2 * i)) == Approx(means[i]));
  }
}

TEST_CASE("values: of two bad indices the first in the order of the model is named", "[fast]") {
  for (int ranks : {1, 2, 3}) {
    Graph g;
    Tensor i = g.input("i", {n}, DType::int32), j = g.input("j", {n}, DType::int32);
    Tensor table = cast(iota(g, Dim("v", 4), DType::int32), DType::float32);
    Tensor first = gather(table, i, "v").named("first");
    Tensor second = gather(exp(sum_all(first)) * table, j, "v").named("second");
    Cluster cluster = Cluster::threads(ranks);
    Session session(g, cluster,
                    {Mesh::parse("a:" + std::to_string(ranks)),
                     Layout::parse(ranks > 1 ? "n:a" : ""),
                     {{"f", {second}, false}}});
    session.feed("i", array_of(DType::int32, {"n"}, {5}, {0, 1, 2, 3, 9}));  // on the last rank
    session.feed("j", array_of(DType::int32, {"n"}, {5}, {8, 1, 2, 3, 0}));  // on the first
    expect_usage({"[gather] index 9"}, [&] { session.run("f"); });
  }
}

TEST_CASE("values: a Session is destroyed after a failure, and others go on", "[fast]") {
  for (int ranks : {2, 3, 4}) {
    Graph g;
    const Dim rows("rows", 24), cols("cols", 40);
    Tensor x = g.input("x", {rows, cols}, DType::float32);
    Tensor y = x;
    for (int l = 0; l < 4; ++l) {  // collectives that overlap others
      Tensor w = g.parameter("w" + std::to_string(l), {cols, Dim("out", 40)}, nn::normal(0.1));
      y = rename(einsum({y, w}, {rows, Dim("out", 40)}), "out", "cols");
    }
    Tensor loss = mean_all(square(y)).named("loss");
    minimize(loss, 0.1, sgd());
    CompileOptions options{Mesh::parse("a:" + std::to_string(ranks)),
                           Layout::parse("rows:a; @params cols:a"),
                           {{"train", {loss}, true}}};
    options.guards = {"loss"};
    Cluster cluster = Cluster::threads(ranks);
    Array good(DType::float32, {"rows", "cols"}, {24, 40}), bad = good;
    for (int i = 0; i < 24 * 40; ++i) good.data<float>()[i] = static_cast<float>(i % 7) - 3;
    bad.data<float>()[23 * 40] = NAN;
    for (int time = 0; time < 10; ++time) {
      auto stopped = std::make_unique<Session>(g, cluster, options);
      stopped->feed("x", bad);
      expect_usage({"is the first that is not finite", "nothing was stored"},
                   [&] { stopped->run("train"); });
      if (time % 2 == 0) {
        stopped->feed("x", good);
        stopped->run("train");
      }
      stopped.reset();
      Session next(g, cluster, options);
      next.feed("x", good);
      next.run("train");
      CHECK(std::isfinite(next.fetch_scalar("loss")));
    }
  }
}

}  // namespace TESSERA_FILE
