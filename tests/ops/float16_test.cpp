// float16: its conversions, number by number, and training in it with a scaled loss.
#include "base/float16.h"

#include <cmath>

#include "kernels/cpu/pointwise_ops.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "support/gpt_run.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// By the definition: sign, 5 bits of exponent, 10 of fraction.
double value_of(uint16_t bits) {
  const double sign = (bits & 0x8000) != 0 ? -1 : 1, fraction = bits & 0x3ff;
  const int exponent = bits >> 10 & 0x1f;
  if (exponent == 0x1f) return fraction != 0 ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

uint16_t bits_of(double x) { return to_float16(static_cast<float>(x)).bits; }

struct Trained {
  std::vector<double> losses, norms, scales, skipped;
  std::map<std::string, Array> stored;
};

struct Setting {
  DType dtype = DType::float16;
  LossScale scale = {};
  std::string mesh = "data:1", layout = {};
  int64_t parts = 1;
  int bad_step = -1;  ///< in which gradients overflow
};

/// w x over a batch, in 16 bits; in the bad step x is as large as the type allows.
Trained train_line(const Setting& s, int steps) {
  Graph g;
  const Dim batch("batch", 8 / s.parts), in("in", 16), out("out", 8);
  const auto build = [&] {
    Tensor x = g.input("x", {batch, in}, DType::float32);
    Tensor w = g.parameter("w", {in, out}, nn::normal(0.5));
    Tensor y = einsum({cast(x, s.dtype), cast(w, s.dtype)}, {batch, out});
    return mean_all(square(cast(y, DType::float32) - 1.0));
  };
  MinimizeOptions options;
  options.clip = 1;
  options.loss_scale = s.scale;
  const Minimized step =
      minimize_in_microbatches(g, "batch", s.parts, build, constant(g, 0.05), adam(), options);
  const Mesh mesh = Mesh::parse(s.mesh);
  Cluster ranks = Cluster::threads(mesh.size());
  Session session(
      g, ranks,
      {mesh, Layout::parse(s.layout), {{"train", {step.loss, step.gradient_norm}, true}}});
  Trained result;
  for (int i = 0; i < steps; ++i) {
    Array x(DType::float32, {"batch", "in"}, {8, 16});
    for (int64_t e = 0; e < x.elements(); ++e)
      x.data<float>()[e] = static_cast<float>(std::sin(0.7 * static_cast<double>(e * e))) *
                           (i == s.bad_step ? 3e4F : 1.0F);
    session.feed("x", x);
    session.run("train");
    result.losses.push_back(session.fetch_scalar(step.loss.name()));
    result.norms.push_back(session.fetch_scalar(step.gradient_norm.name()));
    if (step.loss_scale.empty()) continue;
    result.scales.push_back(session.fetch_scalar(step.loss_scale.name()));
    result.skipped.push_back(session.fetch_scalar(step.skipped_steps.name()));
  }
  for (const std::string& name : session.program().stored_names())
    result.stored[name] = session.fetch(name);
  return result;
}

TEST_CASE("every float16 is the number that its bits say, and comes back") {
  for (uint32_t b = 0; b < 65536; ++b) {
    const auto bits = static_cast<uint16_t>(b);
    const double want = value_of(bits);
    const float got = to_float(Float16{bits});
    if (std::isnan(want)) {
      REQUIRE(std::isnan(got));
      REQUIRE(std::isnan(value_of(bits_of(got))));
    } else {
      REQUIRE(static_cast<double>(got) == want);
      REQUIRE(std::signbit(got) == std::signbit(want));
      REQUIRE(bits_of(want) == bits);
    }
  }
}

TEST_CASE("float16 rounds to the nearest, ties to even") {
  for (uint32_t b = 0; b < 0x7bff; ++b) {
    const auto low = static_cast<uint16_t>(b), high = static_cast<uint16_t>(b + 1);
    const float middle = static_cast<float>((value_of(low) + value_of(high)) / 2);
    REQUIRE(bits_of(middle) == (b % 2 == 0 ? low : high));
    REQUIRE(bits_of(std::nextafter(middle, 0.0F)) == low);
    REQUIRE(bits_of(std::nextafter(middle, INFINITY)) == high);
    REQUIRE(bits_of(-middle) == ((b % 2 == 0 ? low : high) | 0x8000));
  }
  CHECK(bits_of(65519.996) == 0x7bff);
  CHECK(bits_of(65520) == 0x7c00);
  CHECK(bits_of(-1e30) == 0xfc00);
  CHECK(bits_of(std::ldexp(1, -25)) == 0);  // half of the smallest
  CHECK(bits_of(std::ldexp(1.001, -25)) == 1);
  CHECK(bits_of(1e-40) == 0);
  CHECK(std::isnan(round_to_float16(NAN)));
}

TEST_CASE("every instruction set converts float16 alike") {
  std::vector<uint16_t> all(65536), back(all.size());
  std::vector<float> wide(all.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const cpu::BlockOps* ops : cpu::usable_block_ops()) {
    INFO(ops->name);
    const auto n = static_cast<int64_t>(all.size());
    ops->widen(DType::float16)({all.data(), nullptr, nullptr, wide.data(), n});
    ops->narrow(DType::float16)({wide.data(), nullptr, nullptr, back.data(), n});
    for (size_t i = 0; i < all.size(); ++i) {
      if (std::isnan(value_of(all[i]))) {
        REQUIRE(std::isnan(wide[i]));
        REQUIRE(std::isnan(value_of(back[i])));
      } else {
        REQUIRE(static_cast<double>(wide[i]) == value_of(all[i]));
        REQUIRE(back[i] == all[i]);
      }
    }
  }
}

TEST_CASE("loss scaling: bad steps change nothing but the scale, good ones double it",
          "[scaling]") {
  const LossScale scale{.initial = 1024, .grow_after = 3};
  const Trained good = train_line({.scale = scale}, 8);
  CHECK(good.scales == std::vector<double>{1024, 1024, 2048, 2048, 2048, 4096, 4096, 4096});
  CHECK(good.skipped.back() == 0);
  const Trained before = train_line({.scale = scale}, 1);
  const Trained bad = train_line({.scale = scale, .bad_step = 1}, 2);
  CHECK(!std::isfinite(bad.norms[1]));
  CHECK(bad.scales == std::vector<double>{1024, 512});
  CHECK(bad.skipped == std::vector<double>{0, 1});
  for (const auto& [name, array] : before.stored) {
    INFO(name);
    const bool is_scaling = name == "optimizer.loss_scale" || name == "optimizer.skipped_steps" ||
                            name == "optimizer.good_steps";
    CHECK((bad.stored.at(name).bytes == array.bytes) == !is_scaling);
  }
  CHECK(bad.stored.at("optimizer.good_steps").at(0) == 0);
  CHECK(bad.stored.at("optimizer.step").at(0) == 1);
  const Trained after = train_line({.scale = scale, .bad_step = 1}, 5);
  CHECK(after.scales == std::vector<double>{1024, 512, 512, 512, 1024});
  CHECK(after.losses[2] == good.losses[1]);  // as if the bad step had not been
}

TEST_CASE("loss scaling has bounds, and scales are powers of two that change no bit", "[scaling]") {
  const Trained least = train_line({.scale = {.initial = 2, .least = 2}, .bad_step = 0}, 2);
  CHECK(least.scales == std::vector<double>{2, 2});
  const Trained most = train_line({.scale = {.initial = 8, .grow_after = 1, .most = 16}}, 3);
  CHECK(most.scales == std::vector<double>{16, 16, 16});
  const Trained plain = train_line({.dtype = DType::float32}, 6);
  const Trained scaled = train_line({.dtype = DType::float32, .scale = {.initial = 65536}}, 6);
  CHECK(plain.losses == scaled.losses);
  CHECK(plain.norms == scaled.norms);
  CHECK(plain.stored.at("w").bytes == scaled.stored.at("w").bytes);
}

TEST_CASE("loss scaling is the same on one rank and on several, with parts and split state",
          "[scaling]") {
  const LossScale scale{.initial = 1024, .grow_after = 2};
  const Trained one = train_line({.scale = scale, .bad_step = 2}, 6);
  for (const char* layout :
       {"batch:data", "batch:data;@state in:data", "batch:data;@params in:data", "in:data"}) {
    for (const int64_t parts : {1, 2}) {
      INFO(layout << " in " << parts);
      const Trained other = train_line(
          {.scale = scale, .mesh = "data:2", .layout = layout, .parts = parts, .bad_step = 2}, 6);
      CHECK(other.scales == one.scales);
      CHECK(other.skipped == one.skipped);
      for (size_t i = 0; i < one.losses.size(); ++i)
        CHECK((i == 2 || other.losses[i] == Approx(one.losses[i]).epsilon(5e-3)));
    }
  }
}

TEST_CASE("a gpt learns in float16 as in float32", "[scaling]") {
  const auto losses = [](DType dtype, const std::string& mesh, const std::string& layout) {
    Cluster ranks = Cluster::threads(Mesh::parse(mesh).size());
    Graph g;
    const nn::Model model = nn::gpt(g, small_gpt(dtype));
    MinimizeOptions options;
    options.clip = 1;
    if (dtype == DType::float16) options.loss_scale.initial = 65536;
    minimize(model.loss, constant(g, 0.01), adam(), options);
    Session session(g, ranks,
                    {Mesh::parse(mesh), Layout::parse(layout), {{"train", {model.loss}, true}}});
    std::vector<double> all;
    for (int step = 0; step < 10; ++step) {
      feed_tokens(session, model, step);
      session.run("train");
      all.push_back(session.fetch_scalar(model.loss.name()));
    }
    return all;
  };
  const std::vector<double> wide = losses(DType::float32, "a:1", "");
  CHECK(wide.back() < wide.front() - 0.05);
  for (const auto& [mesh, layout] : std::vector<std::pair<const char*, const char*>>{
           {"a:1", ""},
           {"a:2;b:2", "batch:a;heads,ff,vocab:b;@params d_model:a"},
           {"a:3", "length:a"}}) {
    INFO(mesh << " " << layout);
    const std::vector<double> half = losses(DType::float16, mesh, layout);
    for (size_t i = 0; i < wide.size(); ++i) CHECK(half[i] == Approx(wide[i]).epsilon(5e-3));
  }
}

TEST_CASE("loss scaling: what is wrong", "[scaling]") {
  const auto minimized = [](DType loss, DType parameter, const LossScale& scale) {
    Graph g;
    Tensor w = g.parameter("w", Shape{Dim("n", 4)}, nn::ones(), parameter);
    MinimizeOptions options;
    options.loss_scale = scale;
    minimize(cast(sum_all(cast(w, DType::float32)), loss), constant(g, 0.1), sgd(), options);
  };
  expect_usage({"the loss is float16", "cast it to float32"},
               [&] { minimized(DType::float16, DType::float32, {.initial = 8}); });
  expect_usage({"needs 'w' in float32", "cast it where it is used"},
               [&] { minimized(DType::float32, DType::float16, {.initial = 8}); });
  expect_usage({"loss scale of -1", "must be positive"},
               [&] { minimized(DType::float32, DType::float32, {.initial = -1}); });
  Graph g;
  Tensor x = g.input("x", Shape{Dim("n", 2)}, DType::bool_);
  expect_usage({"[UpdateScope] the condition is bool [n=2]", "bool scalar"},
               [&] { UpdateScope scope(g, x); });
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
