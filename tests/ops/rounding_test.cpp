// Numbers of 8 bits against their definition; rounding at random: its mean, and its bits under all
// layouts; training with both.
#include "tessera/rounding.h"

#include <cmath>
#include <cstring>

#include "support/catch.h"
#include "support/expect_error.h"
#include "support/gpt_run.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// All numbers of a format from 0 on, in order: `bits` of fraction, by the definition.
std::vector<double> numbers_of(Float8 format) {
  const bool four = format == Float8::e4m3;
  const int fraction = four ? 3 : 2, bias = four ? 7 : 15, exponents = four ? 16 : 31;
  std::vector<double> all;
  for (int e = 0; e < exponents; ++e) {
    for (int f = 0; f < 1 << fraction; ++f) {
      if (four && e == 15 && f == 7) continue;  // NaN
      const double whole = e == 0 ? f : (1 << fraction) + f;
      all.push_back(std::ldexp(whole, std::max(e, 1) - bias - fraction));
    }
  }
  return all;
}

/// The nearest of them, of two equally near the even one, which is at an even place.
double nearest(const std::vector<double>& numbers, double x) {
  const double a = std::min(std::abs(x), numbers.back());
  size_t best = 0;
  for (size_t i = 1; i < numbers.size(); ++i) {
    const double now = std::abs(numbers[i] - a), before = std::abs(numbers[best] - a);
    if (now < before || (now == before && i % 2 == 0)) best = i;
  }
  return std::copysign(numbers[best], x);
}

Array floats(const std::vector<double>& values, const std::string& dim) {
  Array array(DType::float32, {dim}, {static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); ++i) array.data<float>()[i] = static_cast<float>(values[i]);
  return array;
}

/// What `build` makes of x under a layout.
Array computed(const std::function<Tensor(Tensor)>& build, const std::vector<double>& values,
               const std::string& mesh = "a:1", const std::string& layout = "", int64_t step = 0) {
  Graph g;
  Tensor x = g.input("x", {{"x", static_cast<int64_t>(values.size())}}, DType::float32);
  Tensor y = build(x);
  Cluster ranks = Cluster::threads(Mesh::parse(mesh).size());
  Session session(g, ranks, {Mesh::parse(mesh), Layout::parse(layout), {{"f", {y}, false}}});
  session.set_step(step);
  session.feed("x", floats(values, "x"));
  session.run("f");
  return session.fetch(y.name());
}

/// Steps of training of a gpt whose parameters are stored in bfloat16.
struct Narrow {
  bool stochastic = true, scan = false;
  std::string mesh = "data:1", layout = {};
  int64_t parts = 1;
};

GptOutcome train(const Narrow& run, int steps, DType stored = DType::bfloat16, double lr = 0.01) {
  Graph g;
  g.store_parameters_as(stored, run.stochastic);
  nn::GptOptions size = small_gpt(DType::float32);
  size.scan = run.scan;
  size.batch /= run.parts;
  MinimizeOptions options;
  options.clip = 1;
  const Minimized step = minimize_in_microbatches(
      g, "batch", run.parts, [&] { return nn::gpt(g, size).loss; }, constant(g, lr),
      adam({.weight_decay = 0.1}), options);
  const Mesh mesh = Mesh::parse(run.mesh);
  Cluster ranks = Cluster::threads(mesh.size());
  Session session(g, ranks, {mesh, Layout::parse(run.layout), {{"train", {step.loss}, true}}});
  GptOutcome outcome;
  for (int s = 0; s < steps; ++s) {
    for (const char* input : {"inputs", "targets"}) {
      Array tokens(DType::int32, {"batch", "length"}, {10, 6});
      for (int64_t i = 0; i < 60; ++i)
        tokens.data<int32_t>()[i] =
            static_cast<int32_t>((i * i + s % 4 * 7 + (input[0] == 't' ? 3 : 0)) % 17);
      session.feed(input, tokens);
    }
    session.run("train");
    outcome.losses.push_back(session.fetch_scalar(step.loss.name()));
  }
  for (const std::string& name : session.program().stored_names())
    outcome.stored[name] = session.fetch(name);
  return outcome;
}

double largest_difference(const GptOutcome& a, const GptOutcome& b) {
  double worst = 0;
  for (size_t s = 0; s < a.losses.size(); ++s)
    worst = std::max(worst, std::abs(a.losses[s] / b.losses[s] - 1));
  return worst;
}

Array waves(const char* a, int64_t m, const char* b, int64_t n, double size) {
  Array whole(DType::float32, {a, b}, {m, n});
  for (int64_t i = 0; i < m * n; ++i)
    whole.data<float>()[i] = static_cast<float>(size * std::sin(1.3 * double(i * i + n)));
  return whole;
}

/// In numbers of the format, scaled by the power of two that fits.
std::vector<double> quantized(const Array& a, Float8 format) {
  double greatest = 0;
  for (int64_t i = 0; i < a.elements(); ++i) greatest = std::max(greatest, std::abs(a.at(i)));
  const std::vector<double> numbers = numbers_of(format);
  const double scale = std::exp2(std::floor(std::log2(numbers.back() / greatest)));
  std::vector<double> result;
  for (int64_t i = 0; i < a.elements(); ++i)
    result.push_back(nearest(numbers, a.at(i) * scale) / scale);
  return result;
}

/// The largest difference, over the largest number.
double relative_difference(const Array& got, const std::vector<double>& wanted) {
  double worst = 0, size = 0;
  for (int64_t i = 0; i < got.elements(); ++i) {
    const double want = wanted[static_cast<size_t>(i)];
    worst = std::max(worst, std::abs(got.at(i) - want));
    size = std::max(size, std::abs(want));
  }
  return worst / size;
}

TEST_CASE("numbers of 8 bits are the nearest ones", "[rounding]") {
  for (const Float8 format : {Float8::e4m3, Float8::e5m2}) {
    const std::vector<double> numbers = numbers_of(format);
    CHECK(numbers.back() == (format == Float8::e4m3 ? 448 : 57344));
    std::vector<double> asked = {1e30, -3e38, 1e-30, 0.0, -0.0};
    for (size_t i = 0; i + 1 < numbers.size(); ++i) {
      const double middle = (numbers[i] + numbers[i + 1]) / 2;
      const double off = (numbers[i + 1] - numbers[i]) / 1024;
      for (const double x : {numbers[i], middle - off, middle, middle + off}) {
        asked.push_back(x);
        asked.push_back(-x);
      }
    }
    const Array got = computed([&](Tensor x) { return round_to(x, format); }, asked);
    for (size_t i = 0; i < asked.size(); ++i) {
      CAPTURE(asked[i]);
      CHECK(got.at(static_cast<int64_t>(i)) == nearest(numbers, asked[i]));
    }
    const Array none = computed([&](Tensor x) { return round_to(x, format); }, {NAN});
    CHECK(std::isnan(none.at(0)));
  }
}

TEST_CASE("rounding at random keeps the mean", "[rounding]") {
  constexpr int64_t kDraws = 20000;
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    const double unit = std::ldexp(1.0, dtype == DType::bfloat16 ? -7 : -10);
    for (const double share : {0.0, 0.125, 0.5, 0.9}) {
      for (const double base : {1.0, -1.0, 3.0, 96.0, -0.0078125}) {
        const double up = unit * std::exp2(std::floor(std::log2(std::abs(base))));
        const double step = std::copysign(up, base);  // away from zero
        const double x = base + share * step;
        const Array got = computed([&](Tensor t) { return stochastic_cast(t, dtype); },
                                   std::vector<double>(static_cast<size_t>(kDraws), x));
        double sum = 0;
        int64_t others = 0;
        for (int64_t i = 0; i < kDraws; ++i) {
          const double y = got.at(i);
          others += y != base && (share == 0 || y != base + step);
          sum += y - x;
        }
        CAPTURE(base, share);
        CHECK(others == 0);
        CHECK(std::abs(sum / kDraws) <= 4 * up * 0.5 / std::sqrt(double(kDraws)));
      }
    }
  }
}

TEST_CASE("what cannot be rounded at random is rounded to nearest", "[rounding]") {
  const Array got = computed([](Tensor t) { return stochastic_cast(t, DType::bfloat16); },
                             {0.0, 3e38, -2e30, INFINITY, NAN});
  CHECK(got.at(0) == 0);
  CHECK(got.at(1) == Approx(3e38).epsilon(0.01));
  CHECK(got.at(2) == Approx(-2e30).epsilon(0.01));
  CHECK(std::isinf(got.at(3)));
  CHECK(std::isnan(got.at(4)));
}

TEST_CASE("rounding at random has the same bits under every layout, others each step",
          "[rounding]") {
  std::vector<double> values;
  for (int i = 0; i < 90; ++i) values.push_back(std::sin(i * i) * 3);
  const auto cast = [](Tensor t) { return stochastic_cast(t, DType::bfloat16); };
  const Array whole = computed(cast, values);
  for (const auto& [mesh, layout] : {std::pair{"a:2", "x:a"}, {"a:4", "x:a"}, {"a:2;b:2", "x:b+a"}})
    CHECK(computed(cast, values, mesh, layout).bytes == whole.bytes);
  CHECK(computed(cast, values, "a:1", "", 1).bytes != whole.bytes);
  CHECK(computed(cast, values, "a:1", "", 1).bytes ==
        computed(cast, values, "a:2", "x:a", 1).bytes);
}

TEST_CASE("parameters stored in 16 bits are updated alike under every layout", "[rounding]") {
  for (const bool scan : {false, true}) {
    const GptOutcome plain = train({.scan = scan}, 3);
    for (const auto& [mesh, layout] :
         {std::pair{"data:2", "batch:data"},
          {"data:2", "batch:data;@params d_model:data"},
          {"data:2;model:2", "batch:data;heads,ff,vocab:model;@state d_model:data"}}) {
      INFO(layout << " scan " << scan);
      const GptOutcome other = train({.scan = scan, .mesh = mesh, .layout = layout}, 3);
      // Sums over ranks differ in the last bit of float32, which moves few roundings.
      CHECK(largest_difference(plain, other) < 2e-3);
      CHECK(other.stored.at("gpt.embedding").dtype == DType::bfloat16);
      int64_t same = 0, all = 0;
      for (const auto& [name, whole] : plain.stored) {
        for (int64_t i = 0; i < whole.elements() && whole.dtype == DType::bfloat16; ++i, ++all)
          same += whole.at(i) == other.stored.at(name).at(i);
      }
      CHECK(static_cast<double>(same) > 0.98 * static_cast<double>(all));
    }
  }
  const GptOutcome parts = train({.parts = 2}, 3);
  CHECK(largest_difference(train({}, 3), parts) < 2e-3);
}

TEST_CASE("small updates are lost to nearest rounding and kept by random rounding", "[rounding]") {
  const double lr = 2e-4;
  const GptOutcome wide = train({.stochastic = false}, 60, DType::float32, lr);
  const GptOutcome nearest = train({.stochastic = false}, 60, DType::bfloat16, lr);
  const GptOutcome random = train({}, 60, DType::bfloat16, lr);
  const double learned = wide.losses.front() - wide.losses.back();
  CAPTURE(wide.losses.back(), nearest.losses.back(), random.losses.back());
  REQUIRE(learned > 0.1);
  CHECK(std::abs(random.losses.back() - wide.losses.back()) < 0.15 * learned);
  CHECK(nearest.losses.back() - wide.losses.back() >
        2 * std::abs(random.losses.back() - wide.losses.back()));
  CHECK(wide.stored.at("optimizer.gpt.embedding.adam_m").dtype == DType::float32);
  CHECK(random.stored.at("optimizer.gpt.embedding.adam_m").dtype == DType::float32);
}

TEST_CASE("products in float8 are the products of scaled numbers of 8 bits", "[rounding]") {
  Graph g;
  const Dim rows("rows", 6), inner("inner", 10), cols("cols", 4);
  Tensor x = g.input("x", {rows, inner}, DType::float32);
  Tensor w = g.input("w", {inner, cols}, DType::float32);
  Tensor r = g.input("r", {rows, cols}, DType::float32);
  Tensor y = float8_matmul(x, w, {rows, cols}).named("y");
  const std::vector<Tensor> grads = gradients(sum_all(y * r), {x, w});
  const std::vector<Tensor> wanted = {y, grads[0].named("dx"), grads[1].named("dw")};
  const Array xs = waves("rows", 6, "inner", 10, 3e-4), ws = waves("inner", 10, "cols", 4, 70),
              rs = waves("rows", 6, "cols", 4, 1);
  const auto qx = quantized(xs, Float8::e4m3), qw = quantized(ws, Float8::e4m3),
             qr = quantized(rs, Float8::e5m2);
  std::vector<double> wy(24), wdx(60), wdw(40);
  for (size_t m = 0; m < 6; ++m) {
    for (size_t k = 0; k < 10; ++k) {
      for (size_t n = 0; n < 4; ++n) {
        wy[m * 4 + n] += qx[m * 10 + k] * qw[k * 4 + n];
        wdx[m * 10 + k] += qr[m * 4 + n] * qw[k * 4 + n];
        wdw[k * 4 + n] += qr[m * 4 + n] * qx[m * 10 + k];
      }
    }
  }
  for (const auto& [mesh, layout] : {std::pair{"a:1", ""},
                                     {"a:2", "rows:a"},
                                     {"a:2", "inner:a"},
                                     {"a:2;b:2", "cols:a;rows:b"}}) {
    INFO(mesh << " " << layout);
    Cluster ranks = Cluster::threads(Mesh::parse(mesh).size());
    Session session(g, ranks, {Mesh::parse(mesh), Layout::parse(layout), {{"f", wanted, false}}});
    session.feed("x", xs);
    session.feed("w", ws);
    session.feed("r", rs);
    session.run("f");
    const std::vector<double>* expected[] = {&wy, &wdx, &wdw};
    for (size_t t = 0; t < wanted.size(); ++t) {
      CAPTURE(wanted[t].name());
      CHECK(relative_difference(session.fetch(wanted[t].name()), *expected[t]) < 1e-5);
    }
  }
}

TEST_CASE("a gpt trains with products in float8", "[rounding]") {
  const auto curve = [](bool float8, bool scan, const char* mesh, const char* layout) {
    Graph g;
    nn::GptOptions size = small_gpt(DType::bfloat16);
    size.float8 = float8;
    size.scan = scan;
    const nn::Model model = nn::gpt(g, size);
    minimize(model.loss, constant(g, 0.01), adam(), {.clip = 1});
    Cluster ranks = Cluster::threads(Mesh::parse(mesh).size());
    Session session(g, ranks,
                    {Mesh::parse(mesh), Layout::parse(layout), {{"train", {model.loss}, true}}});
    std::vector<double> losses;
    for (int s = 0; s < 30; ++s) {
      feed_tokens(session, model, s % 4);
      session.run("train");
      losses.push_back(session.fetch_scalar(model.loss.name()));
    }
    return losses;
  };
  const auto wide = curve(false, false, "a:1", ""), narrow = curve(true, false, "a:1", "");
  CHECK(narrow != wide);
  const double learned = wide.front() - wide.back();
  REQUIRE(learned > 0.3);
  CHECK(std::abs(narrow.back() - wide.back()) < 0.2 * learned);
  const auto split = curve(true, false, "a:2;b:2", "batch:a;heads,ff:b");
  const auto scanned = curve(true, true, "a:2", "batch:a");
  CHECK(std::abs(split.back() - narrow.back()) < 0.1 * learned);
  CHECK(std::abs(scanned.back() - narrow.back()) < 0.1 * learned);
}

TEST_CASE("rounding refuses what it cannot do", "[rounding]") {
  Graph g;
  const Dim a("a", 2), b("b", 3), c("c", 4);
  Tensor x = g.input("x", {a, b}, DType::float32), w = g.input("w", {b, c}, DType::float32);
  Tensor d = g.input("d", {a, b}, DType::float64);
  expect_usage({"[round_to] 'd' is float64; it must be float32", "rounding_test.cpp"},
               [&] { round_to(d, Float8::e4m3); });
  expect_usage({"[stochastic_cast] 'd' is float64"}, [&] { stochastic_cast(d, DType::bfloat16); });
  expect_usage({"[stochastic_cast] to int32; it must be bfloat16 or float16"},
               [&] { stochastic_cast(x, DType::int32); });
  expect_usage({"[float8_matmul] 'd' is float64"}, [&] { float8_matmul(d, d, {a}); });
  expect_usage({"[float8_matmul] only 'x'", "has dim 'a'; sum it first"},
               [&] { float8_matmul(x, w, {c}); });
  expect_usage({"[store_parameters_as] int32; it is float32, bfloat16 or float16"},
               [&] { g.store_parameters_as(DType::int32); });
  expect_usage({"[store_parameters_as] stochastic rounding of parameters in float32"},
               [&] { g.store_parameters_as(DType::float32, true); });
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
