// Storage rules, microbatches, values recomputed and loops over layers change memory and
// communication, and no loss.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "support/catch.h"
#include "support/gpt_run.h"
#include "tessera/explain.h"
#include "tessera/storage.h"

namespace tessera::test {

namespace TESSERA_FILE {

constexpr int64_t kBatch = 8;

struct Fit {
  bool scan = false;
  int64_t parts = 1;
  std::string recompute = {};
  std::string mesh = "data:1", layout = {};
  int stage = 0;  ///< of zero, over the axis "data"
  double rate = 0.01;
  bool reduce_each_microbatch = false;
};

struct Curve {
  std::vector<double> losses;
  double skipped = 0;  ///< steps that overflowed float16
  int64_t stored = 0;  ///< bytes on a rank
  std::string program;
};

/// adam() divides a gradient by its own size, so its first step is the gradient's sign: where that
/// is below the rounding error of 16 bits, layouts take a whole step in opposite directions, as the
/// plain run does beside float32. Momentum is linear in the gradient, and Adam with an epsilon
/// above that noise nearly so.
Optimizer adam_above_noise() {
  AdamOptions options;
  options.eps = 1e-3;
  return adam(options);
}

Curve train(const Fit& fit, DType dtype, int steps, const Optimizer& optimizer = adam(),
            double loss_scale = 1024) {
  nn::GptOptions o;
  o.layers = 2;
  o.d_model = 16;
  o.heads = 2;
  o.ff = 32;
  o.length = 8;
  o.vocab = 32;
  o.batch = kBatch / fit.parts;
  o.dtype = dtype;
  o.scan = fit.scan;
  o.dropout = 0.1;
  Graph g;
  MinimizeOptions options;
  options.clip = 1;
  if (dtype == DType::float16) options.loss_scale.initial = loss_scale;
  if (!fit.recompute.empty()) options.gradient.recompute = {fit.recompute};
  const DType stored = dtype == DType::float64 ? dtype : DType::float32;
  const Minimized step = minimize_in_microbatches(
      g, "batch", fit.parts, [&] { return cast(nn::gpt(g, o).loss, stored); },
      constant(g, fit.rate, stored), optimizer, options);
  const Mesh mesh = Mesh::parse(fit.mesh);
  std::string layout = fit.layout;
  if (fit.stage > 0)
    layout += ";" + storage_rules(g, mesh, Layout::parse(layout), fit.stage, "data");
  Cluster ranks = Cluster::threads(mesh.size());
  CompileOptions compile{mesh, Layout::parse(layout), {{"train", {step.loss}, true}}};
  compile.reduce_each_microbatch = fit.reduce_each_microbatch;
  Session session(g, ranks, compile);
  Curve curve;
  curve.stored = session.program().persistent_bytes();
  curve.program = session.program().text();
  for (int s = 0; s < steps; ++s) {
    for (const char* input : {"inputs", "targets"}) {
      Array tokens(DType::int32, {"batch", "length"}, {kBatch, o.length});
      for (int64_t i = 0; i < tokens.elements(); ++i)
        tokens.data<int32_t>()[i] =
            static_cast<int32_t>((i * i + s * 5 + (input[0] == 't' ? 3 : 0)) % 31);
      session.feed(input, tokens);
    }
    session.run("train");
    curve.losses.push_back(session.fetch_scalar(step.loss.name()));
  }
  if (!step.skipped_steps.empty()) curve.skipped = session.fetch_scalar(step.skipped_steps.name());
  return curve;
}

std::vector<Fit> fits() {
  const std::pair<const char*, const char*> places[] = {
      {"data:2", "batch:data"},
      {"data:2;model:2", "batch:data;heads,ff,vocab:model"},
      {"pod:2;data:2", "batch:pod+data"},  // whole in each pod: HSDP
      {"data:8", "batch:data"},            // of microbatches some ranks have nothing
      {"pod:2;data:4", "batch:pod+data"},
      {"pod:2;data:2;model:2", "batch:pod+data;heads,ff:model"}};
  std::vector<Fit> all;
  for (const auto& [mesh, layout] : places) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const bool scan : {false, true}) {
        for (const int64_t parts : {1, 2}) {
          for (const char* recompute : {"", "attention", "block"})
            all.push_back({scan, parts, recompute, mesh, layout, stage});
        }
      }
    }
  }
  return all;
}

double distance(const Curve& a, const Curve& b) {
  double worst = 0;
  for (size_t s = 0; s < a.losses.size(); ++s)
    worst = std::max(worst, std::abs(a.losses[s] / b.losses[s] - 1));
  return worst;
}

struct Trial {
  DType dtype;
  double tolerance;  ///< of losses, relative; 0: see rounding_of_updates()
  Optimizer optimizer = adam();
  double loss_scale = 1024;  ///< in float16
};

constexpr double kUnit[] = {1.0 / 256, 1.0 / 2048};  ///< of a rounding to bfloat16, float16

/// Where losses are chaotic no fixed tolerance is right for every number of steps: two units, or
/// eight times what one rounding of the whole update does, as if the learning rate were a unit
/// larger or smaller.
double rounding_of_updates(const Trial& trial, int steps, const Curve& plain) {
  const double unit = kUnit[trial.dtype == DType::float16];
  double most = 0;
  for (const int sign : {-1, 1}) {
    Fit fit;
    fit.rate *= 1 + sign * unit;
    most = std::max(
        most, distance(train(fit, trial.dtype, steps, trial.optimizer, trial.loss_scale), plain));
  }
  return std::max(2 * unit, 8 * most);
}

/// With `every` each of the matrix, sampled: 50 steps of each, if the environment asks for it. The
/// losses are those of the plain run and, in 16 bits, those of the plain run in float32, if no step
/// is skipped.
void check_curves(const Trial& trial, size_t every, int steps = 4) {
  if (std::getenv("TESSERA_LONG") != nullptr) steps = 50, every = 1;
  const auto run = [&](const Fit& fit, DType dtype) {
    return train(fit, dtype, steps, trial.optimizer, trial.loss_scale);
  };
  const std::string dtype = to_string(trial.dtype);
  const DType stored = is_narrow(trial.dtype) ? DType::float32 : trial.dtype;
  const Curve plain = run({}, trial.dtype), wide = run({}, stored);
  const auto [least, most] = std::minmax_element(plain.losses.begin(), plain.losses.end());
  REQUIRE(*most - *least > 0.01);  // it moves
  REQUIRE((plain.skipped > 0) == (trial.loss_scale > 1e5));
  const std::vector<Fit> all = fits();
  const double tolerance =
      trial.tolerance > 0 ? trial.tolerance : rounding_of_updates(trial, steps, plain);
  double worst = 0, from_wide = 0;
  for (size_t i = 0; i < all.size(); i += every) {
    const Fit& fit = all[i];
    INFO(dtype << " " << fit.mesh << " " << fit.layout << " zero " << fit.stage << " parts "
               << fit.parts << " scan " << fit.scan << " recompute '" << fit.recompute << "'");
    const Curve curve = run(fit, trial.dtype);
    CHECK(curve.skipped == plain.skipped);
    const double off = distance(curve, plain);
    CHECK(off <= tolerance);
    worst = std::max(worst, off);
    if (curve.skipped > 0) continue;
    const double off_wide = distance(curve, wide);
    CHECK(off_wide <= tolerance);
    from_wide = std::max(from_wide, off_wide);
  }
  WARN(dtype << ": " << (all.size() + every - 1) / every << " of " << all.size() << " settings, "
             << steps << " steps; losses differ by " << worst << ", from wider ones by "
             << from_wide << ", allowed is " << tolerance << "; " << plain.skipped << " skipped");
}

TEST_CASE("storage, parts, recompute and loops change no loss", "[fitting]") {
  check_curves({DType::float64, 1e-10}, 13, 3);
}

// A rounding in 16 bits errs by a unit of 2^-8 (bfloat16) or 2^-11 (float16), and each setting
// rounds its partial sums in places of its own. Losses are float32 and depend on many roundings
// whose errors are independent: they differ by a unit or two, where an update is linear in the
// gradient. Adam's makes of a gradient's error up to |g| / eps times as much, and the next steps
// make that more.
TEST_CASE("the whole matrix of storage, parts, recompute and loops", "[fitting][slow]") {
  check_curves({DType::float64, 1e-10}, 7);
  check_curves({DType::float32, 1e-5}, 17);
  check_curves({DType::bfloat16, 2 * kUnit[0], momentum()}, 29);
  check_curves({DType::float16, 2 * kUnit[1], momentum()}, 31);
  check_curves({DType::bfloat16, 0, adam_above_noise()}, 31);
  check_curves({DType::float16, 0, adam_above_noise(), 1 << 18}, 29);
}

TEST_CASE("gradients of parts that are combined in each part change no loss", "[fitting]") {
  for (const DType dtype : {DType::float64, DType::bfloat16}) {
    for (const bool scan : {false, true}) {
      for (const int stage : {0, 1, 2, 3}) {
        INFO(to_string(dtype) << ", scan " << scan << ", stage " << stage);
        Fit fit{scan, 2, "", "data:2;model:2", "batch:data;heads,ff,vocab:model", stage};
        const Curve once = train(fit, dtype, 3, momentum());
        fit.reduce_each_microbatch = true;
        const Curve each = train(fit, dtype, 3, momentum());
        CHECK(distance(each, once) <= (dtype == DType::float64 ? 1e-12 : 2 * kUnit[0]));
      }
    }
  }
}

// What all iterations gather again is not fetched an iteration early as a whole: an iteration for a
// part of the batch holds the parameters of some layers, not those of all of them three times.
TEST_CASE("sharded parameters stay sharded while a batch is taken in parts", "[fitting]") {
  const auto transient = [](bool overlap, bool reduce_each_microbatch, bool scan = false) {
    nn::GptOptions o;
    o.layers = 8;
    o.scan = scan;
    o.d_model = 128;
    o.heads = 4;
    o.ff = 512;
    o.length = 16;
    o.vocab = 32;
    o.batch = 4;
    Graph g;
    MinimizeOptions options;
    options.gradient.recompute = {"block"};
    const Minimized step = minimize_in_microbatches(
        g, "batch", 4, [&] { return nn::gpt(g, o).loss; }, constant(g, 0.01), adam(), options);
    const Mesh mesh = Mesh::parse("data:4");
    const std::string layout =
        "batch:data;" + storage_rules(g, mesh, Layout::parse("batch:data"), 3, "data");
    CompileOptions compile{mesh, Layout::parse(layout), {{"train", {step.loss}, true}}};
    compile.overlap = overlap;
    compile.reduce_each_microbatch = reduce_each_microbatch;
    return explain(g, compile).memory.transient;
  };
  constexpr int64_t kParameters = 8 * (4 * 128 * 128 + 2 * 128 * 512) * 4;
  CHECK(transient(true, false) < transient(false, false) + kParameters);
  CHECK(transient(true, true) < 2 * kParameters);
  // Products add to the sums of the gradients where these are.
  CHECK(transient(false, false) < kParameters + kParameters / 4);
  // What a loop over layers makes of a part is added to the sum at once, not stacked beside it.
  CHECK(transient(true, false, true) < transient(true, false) + kParameters / 4);
}

TEST_CASE(
    "a layer's parameters are gathered an iteration early, gradients reduced an iteration late",
    "[fitting]") {
  const std::string fsdp =
      train({.scan = true, .mesh = "data:2", .layout = "batch:data", .stage = 3}, DType::float32, 1)
          .program;
  CHECK(fsdp.find(" early=") != std::string::npos);
  CHECK(fsdp.find(" late=") != std::string::npos);
  // Parameters are gathered in the dtype in which they are used.
  const std::string half =
      train({.scan = true, .mesh = "data:2", .layout = "batch:data", .stage = 3}, DType::bfloat16,
            1)
          .program;
  CHECK(half.find(" early=") != std::string::npos);
  for (const std::string* program : {&fsdp, &half}) {
    const std::string& text = *program;
    int wide = 0, narrow = 0;
    for (size_t at = 0; (at = text.find("= all_gather", at)) != std::string::npos; ++at) {
      const size_t line = text.rfind('\n', at) + 1;
      const std::string result = text.substr(line, at - line);
      wide += result.find(":float32[") != std::string::npos;
      narrow += result.find(":bfloat16[") != std::string::npos;
    }
    CHECK((program == &half ? narrow : wide) > 16);
    CHECK((program == &half ? wide : narrow) <= 2);  // tables are read by their float32 rows
  }
  CHECK(half.find(".cast.stacked") == std::string::npos);  // not kept whole for backward
  const std::string plain = train({.scan = true}, DType::float32, 1).program;
  CHECK(plain.find(" early=") == std::string::npos);
  CHECK(plain.find("loop 2 iterations") != std::string::npos);
}

TEST_CASE("what is stored on a rank falls with the ranks it is split over", "[fitting]") {
  for (const bool scan : {false, true}) {
    Fit fit{.scan = scan, .mesh = "data:4", .layout = "batch:data"};
    int64_t bytes[4];
    for (fit.stage = 0; fit.stage <= 3; ++fit.stage)
      bytes[fit.stage] = train(fit, DType::float32, 1).stored;
    // Parameters and two moments of each; tokens and a few numbers beside them. Each tensor is
    // aligned to 64 bytes.
    CHECK(bytes[1] < bytes[0] * 1 / 3 + bytes[0] * 2 / 3 / 4 + bytes[0] / 10);
    CHECK(bytes[2] == bytes[1]);  // gradients are not stored
    CHECK(bytes[3] < bytes[0] / 4 + bytes[0] / 10);
  }
}

TEST_CASE("gradients in bfloat16 are sent in parts, and of many microbatches once", "[fitting]") {
  const auto sent = [](const Fit& fit, const char* kind) {
    const std::string program = train(fit, DType::bfloat16, 1).program;
    int large = 0;
    for (size_t at = 0;
         (at = program.find(std::string("= ") + kind + " ", at)) != std::string::npos; ++at) {
      const size_t line = program.rfind('\n', at) + 1;
      const std::string text = program.substr(line, at - line);
      large += text.find("mlp.einsum") != std::string::npos ||
               text.find("mlp.cast") != std::string::npos ||
               text.find("mlp.up.w.grad") != std::string::npos;
    }
    return large;
  };
  const Fit fsdp{.scan = true, .mesh = "data:2", .layout = "batch:data", .stage = 3};
  CHECK(sent(fsdp, "reduce_scatter") >= 2);
  CHECK(sent(fsdp, "all_reduce") == 0);
  // In a loop over parts nothing of the kind is inside: 2 layers with 2 matrices.
  const Fit parts{.parts = 4, .mesh = "data:2", .layout = "batch:data"};
  const std::string program = train(parts, DType::bfloat16, 1).program;
  const size_t body = program.find("loop 4 iterations");
  REQUIRE(body != std::string::npos);
  for (size_t at = body; (at = program.find("all_reduce", at)) != std::string::npos; ++at) {
    const size_t line = program.rfind('\n', at) + 1;
    const std::string text = program.substr(line, program.find('\n', at) - line);
    INFO(text);
    CHECK((text.starts_with("    ") == false || text.find(".w") == std::string::npos));
  }
}

TEST_CASE("the first values of what is stored in parts are made in parts", "[fitting]") {
  const auto transient = [](const char* layout) {
    Graph g;
    const Dim in("in", 256), out("out", 256);
    const auto random = [](Graph& graph, const Shape& shape, DType dtype) {
      return random_normal(graph, shape, 0, 1, dtype);
    };
    std::vector<Tensor> all;
    for (const char* name : {"a", "b", "c", "d"})
      all.push_back(g.parameter(name, {in, out}, random));
    const Tensor sum = reduce_sum(all[0], {"in", "out"});
    return explain(g, {Mesh::parse("data:4"), Layout::parse(layout), {{"run", {sum}, false}}})
        .memory.transient;
  };
  constexpr int64_t kWhole = 256 * 256 * 4;
  CHECK(transient("@params in:data") <= kWhole + 4096);  // of "a", to be read; the others in parts
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
