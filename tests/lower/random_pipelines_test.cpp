// Random layers in random loops over microbatches: any number of stages, chunks and microbatches
// computes what one rank does, to the last bit under strict numerics. TESSERA_PIPELINES has more of
// them tried.
#include <fmt/format.h>

#include <cstdlib>
#include <random>

#include "support/catch.h"
#include "support/check_equal.h"
#include "tessera/loops.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

using Random = std::mt19937_64;

constexpr DType kType = DType::float64;
const Dim kModel("model", 6), kFf("ff", 5);

/// One or two loops over layers. What a layer does is drawn once for each loop.
struct Recipe {
  struct Loop {
    int64_t layers = 4;
    std::vector<uint64_t> draws;
  };
  std::vector<Loop> loops;
  int64_t batch = 1, microbatches = 1;
  bool clips = false;
};

class Builder {
 public:
  Builder(Graph& g, const Recipe& recipe) : g_(g), recipe_(recipe) {}

  Loss loss() {
    const Dim batch("batch", recipe_.batch);
    Tensor input = g_.input("x", {batch, kModel}, kType);
    Tensor x = tanh(input * parameter("scale", {kModel}));
    Tensor value = constant(g_, 0, kType);
    std::vector<Tensor> outputs;
    for (size_t l = 0; l < recipe_.loops.size(); ++l) {
      const Scope scope(g_, fmt::format("loop{}", l));
      memory_ = l == 0 ? input : x;
      const IterationResults all =
          scan(g_, Dim("layers", recipe_.loops[l].layers), {l == 0 ? x : tanh(input)}, {},
               [&](const Iteration& i) { return layer(i, recipe_.loops[l].draws); },
               {.own_parameters = true});
      x = all.carries[0];
      for (const Tensor& sum : all.sums) value = value + mean_all(sum) * 0.1;
      for (const Tensor& stacked : all.stacked) {
        value = value + sqrt(mean_all(square(stacked)) + 0.1) * 0.2;
        if (stacked.shape().has("batch")) outputs.push_back(reduce_mean(stacked, "layers"));
      }
    }
    outputs.push_back(x);
    return Loss(value + mean_all(square(x)), {}, {}, outputs);
  }

 private:
  Tensor parameter(const std::string& name, const Shape& shape) {
    return g_.parameter(name, shape, nn::normal(0.6), kType);
  }

  IterationResults layer(const Iteration& iteration, const std::vector<uint64_t>& draws) {
    Tensor x = iteration.carries[0];
    const Dim batch = x.dim("batch");
    IterationResults results;
    for (size_t d = 0; d < draws.size(); ++d) {
      const std::string name = fmt::format("w{}", d);
      switch (draws[d] % 9) {
        case 0: {
          Tensor h = tanh(einsum({x, parameter(name, {kModel, kFf})}, {batch, kFf}));
          x = x + einsum({h, parameter(name + "down", {kFf, kModel})}, {batch, kModel});
          break;
        }
        case 1:
          x = x + dropout(tanh(x * parameter(name, {kModel})), 0.3);
          break;
        case 2:
          x = rms_norm(x, "model", parameter(name, {kModel}), 0.1);
          break;
        case 3:
          x = x + sin(memory_ * parameter(name, {kModel})) * 0.3;
          break;
        case 4:
          x = x + cast(iteration.index, kType) * 0.05 + memory_ * 0.1;
          break;
        case 5:
          results.sums.push_back(reduce_mean(square(x), "model"));
          break;
        case 6:
          results.stacked.push_back(reduce_mean(x * parameter(name, {kModel}), "model"));
          break;
        case 7:
          results.stacked.push_back(mean_all(sin(x)));
          break;
        default:
          x = x + softmax(x, "model") * 0.4;
      }
    }
    results.carries = {tanh(x)};
    return results;
  }

  Graph& g_;
  const Recipe& recipe_;
  Tensor memory_;
};

Recipe draw_recipe(Random& random, int64_t multiple) {
  Recipe recipe;
  recipe.loops.resize(1 + random() % 2);
  for (Recipe::Loop& loop : recipe.loops) {
    loop.layers = multiple * static_cast<int64_t>(1 + random() % 2);
    if (multiple == 1) loop.layers = static_cast<int64_t>(1 + random() % 6);
    loop.draws.resize(1 + random() % 4);
    for (uint64_t& draw : loop.draws) draw = random();
    loop.draws[0] = random() % 4;  // with parameters, without which there are no stages
  }
  recipe.batch = static_cast<int64_t>(1 + random() % 3) * 2;
  recipe.microbatches = static_cast<int64_t>(1 + random() % 7);
  recipe.clips = random() % 2;
  return recipe;
}

Values run(const Recipe& recipe, int ranks, const std::string& mesh, const std::string& layout,
           const std::string& schedule, int64_t strict_chunks) {
  Graph g;
  MinimizeOptions minimize{.clip = recipe.clips ? 0.1 : 0};
  minimize.loop.contiguous = strict_chunks > 0;
  const Minimized step = minimize_in_microbatches(
      g, "batch", recipe.microbatches, [&] { return Builder(g, recipe).loss(); },
      constant(g, 0.1, kType), adam(), minimize);
  std::vector<Tensor> outputs = step.outputs;
  outputs.insert(outputs.end(), {step.loss, step.gradient_norm});
  for (size_t i = 0; i < outputs.size(); ++i)
    outputs[i] = identity(outputs[i]).named(fmt::format("out{}", i));
  CompileOptions options{Mesh::parse(mesh), Layout::parse(layout), {{"train", outputs, true}}};
  options.pipeline_schedule = schedule;
  options.strict_chunks = strict_chunks;
  Cluster cluster = Cluster::threads(ranks);
  Session session(g, cluster, options);
  Array x(kType, {"batch", "model"}, {recipe.batch * recipe.microbatches, kModel.size});
  for (int64_t i = 0; i < x.elements(); ++i)
    x.data<double>()[i] = std::sin(static_cast<double>(i * i));
  session.feed("x", x);
  for (int i = 0; i < 2; ++i) session.run("train");
  Values values;
  for (const Tensor& t : outputs) values[t.name()] = session.fetch(t.name());
  for (const std::string& name : session.program().stored_names())
    values[name] = session.fetch(name);
  return values;
}

std::string text_of(const Recipe& recipe) {
  std::string text = fmt::format("batch {}, {} microbatches", recipe.batch, recipe.microbatches);
  for (const Recipe::Loop& loop : recipe.loops) {
    text += fmt::format(", {} layers of", loop.layers);
    for (const uint64_t draw : loop.draws) text += fmt::format(" {}", draw % 9);
  }
  return text;
}

void check_same_bits(const Values& one, const Values& other) {
  for (const auto& [name, values] : one) {
    INFO(name);
    const Array& found = other.at(name);
    REQUIRE(found.elements() == values.elements());
    CHECK(found.bytes == values.bytes);
  }
}

void try_one(uint64_t seed, int64_t strict_chunks) {
  Random random(seed);
  const auto stages = static_cast<int64_t>(2 + random() % 3);
  const auto chunks = static_cast<int64_t>(1 + random() % 3),
             axis = static_cast<int64_t>(random() % 3);
  const Recipe recipe = draw_recipe(random, chunks == 1 ? 1 : stages * chunks);
  const std::string mesh = fmt::format("pipe:{}{}", stages,
                                       axis == 0   ? ""
                                       : axis == 1 ? ";data:2"
                                                   : ";data:3");
  std::string layout = chunks == 1 ? "layers:pipe" : fmt::format("layers:pipe*{}", chunks);
  const char* others[] = {"",
                          "batch:data",
                          "ff?:data",
                          "batch:data;@state model:data",
                          "model:data",
                          "@params model:data",
                          "batch:data;@grads layers:data"};
  if (axis > 0) layout += fmt::format(";{}", others[random() % std::size(others)]);
  const char* schedules[] = {"1f1b", "zb_h1", chunks == 1 ? "gpipe" : "zb_v"};
  const std::string schedule = schedules[random() % (chunks == 3 ? 2 : 3)];
  INFO("seed " << seed << ": " << text_of(recipe) << ", " << mesh << " " << layout << ", schedule "
               << schedule);
  const Values one = run(recipe, 1, "a:1", "", schedule, strict_chunks),
               staged =
                   run(recipe, Mesh::parse(mesh).size(), mesh, layout, schedule, strict_chunks);
  strict_chunks > 0 ? check_same_bits(one, staged) : check_equal(one, staged);
}

uint64_t seeds() {
  const char* more = std::getenv("TESSERA_PIPELINES");
  return more != nullptr ? std::stoull(more) : 60;
}

TEST_CASE("random layers in stages and chunks train as on one rank", "[pipeline]") {
  for (uint64_t seed = 0; seed < seeds(); ++seed) try_one(seed, 0);
}

TEST_CASE("strict: random layers in stages and chunks have the bits of one rank", "[strict]") {
  for (uint64_t seed = 0; seed < seeds(); seed += 2) try_one(seed, 16);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
