// Plans of small graphs against all layouts of all their tensors, each lowered and simulated.
#include "plan/all_layouts.h"

#include <array>
#include <random>

#include "compile/kernel_info.h"
#include "plan/plan_models.h"
#include "plan/pricer.h"
#include "support/catch.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// A step of a few random ops; with a loss, its gradient and an update if `trains`.
struct SmallStep {
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  FunctionSpec function;

  SmallStep(std::mt19937_64& random, int ops, bool trains) {
    Graph& g = *graph;
    const auto draw = [&](size_t below) { return static_cast<size_t>(random() % below); };
    const std::array<int64_t, 4> sizes{256, 1024, 4096, 16384};
    std::vector<Dim> dims;
    for (const char* name : {"p", "q", "r"}) dims.emplace_back(name, sizes[draw(4)]);
    const DType dtype = draw(2) == 0 ? DType::float32 : DType::bfloat16;
    const Tensor w = g.parameter("w", {dims[1], dims[2]}, nn::zeros(), dtype);
    std::vector<Tensor> pool{
        w, einsum({g.input("x", {dims[0], dims[1]}, dtype), w}, {dims[0], dims[2]})};
    for (int i = 1; i < ops; ++i) pool.push_back(next(draw, dims, pool));
    const Tensor last = pool.back();
    if (!trains) {
      function = {"f", {last}, false};
      return;
    }
    const Tensor loss = sum_all(draw(2) == 0 ? last : last * last);
    g.update(w, w - gradients(loss, {w})[0]);
    function = {"f", {loss}, true};
  }

  template <typename Draw>
  static Tensor next(const Draw& draw, std::vector<Dim>& dims, const std::vector<Tensor>& pool) {
    const Tensor a = pool.back(), b = pool[draw(pool.size())];
    switch (draw(7)) {
      case 0:
      case 1: {
        std::vector<Dim> out;
        for (const Dim& d : dims) {
          const bool in_a = a.shape().has(d.name), in_b = b.shape().has(d.name);
          if (in_a != in_b || (in_a && draw(2) == 0)) out.push_back(d);
        }
        return einsum({a, b}, Shape(out));
      }
      case 2:
        return a.shape() == b.shape() ? a + b : a * 3.0;
      case 3:
        if (a.shape().rank() == 0) return tanh(a);
        return reduce_sum(a, a.shape()[static_cast<int>(draw(2)) % a.shape().rank()].name);
      case 4: {
        if (a.shape().rank() == 0) return tanh(a);
        const Dim old = a.shape()[0];
        const Dim renamed(old.name + "_", old.size);
        if (std::find(dims.begin(), dims.end(), renamed) == dims.end()) dims.push_back(renamed);
        return a.shape().has(renamed.name) ? tanh(a) : rename(a, old.name, renamed.name);
      }
      case 5:
        return tanh(a);
      default:
        return a * 3.0;
    }
  }
};

TEST_CASE("plan: of small graphs no layouts of single tensors are simulated faster",
          "[plan][choice][slow]") {
  std::mt19937_64 random(31);
  constexpr double kFewest = 50, kMost = 6600;  // layouts of a graph
  constexpr int kGraphs = 24;
  int graphs = 0, trained = 0, split_twice = 0;
  double known = 0;
  for (int i = 0; i < 300 && graphs < kGraphs; ++i) {
    const bool two = i % 3 == 2, trains = i % 3 == 1 || i % 12 == 2;
    const SmallStep step(random, static_cast<int>((two || trains ? 1 : 2) + random() % 2), trains);
    const Mesh mesh = Mesh::parse(two ? "a:2;b:2" : "a:4");
    const Costs costs(a100(), mesh);
    const LayoutProblem problem(*step.graph, step.function, costs, composite_kernels());
    const double layouts = count_layouts(problem);
    if (layouts > kMost || layouts < kFewest) continue;
    ++graphs, trained += trains, split_twice += two;
    PlanModel model;
    model.build = [step](const PlanBuild&) { return PlanStep{step.graph, {step.function}}; };
    Pricer pricer(model, a100());
    const Least least = least_of_all(problem, mesh, [&](const std::string& layout) {
      return pricer.price(mesh, layout, {}, false).seconds;
    });
    PlanOptions options;
    options.memory = 0;
    options.seconds = 20;
    options.each_tensor = true;
    const Plan found = plan(model, mesh, a100(), options);
    INFO(step.graph->to_string() << "on " << mesh.to_string() << ", the fastest of " << least.tried
                                 << " is " << least.layout << "\nplan: " << found.best.layout
                                 << "\n"
                                 << to_string(found));
    CHECK(found.best.seconds <= least.seconds * (1 + 1e-9));
    CHECK(found.tensors.floor <= least.seconds * (1 + 1e-9));
    known += found.tensors.floor / least.seconds / kGraphs;
    // What is stored otherwise than it is read is not among all layouts.
    if (found.best.zero == 0) CHECK(found.best.seconds >= least.seconds * (1 - 1e-9));
  }
  CHECK(graphs == kGraphs);
  INFO("the bound is " << known << " of the least time");
  CHECK(known > 0.5);
  CHECK(trained >= 5);
  CHECK(split_twice >= 5);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
