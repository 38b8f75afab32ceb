// The problem of choice of a step against all layouts of all tensors, each lowered.
#include "plan/choice/layout_problem.h"

#include <random>

#include <fmt/format.h>

#include "compile/kernel_info.h"
#include "lower/lower.h"
#include "plan/choice/step_sum.h"
#include "plan/plan_models.h"
#include "support/catch.h"

namespace tessera::test {

namespace {

/// The time of the steps that lowering makes of a layout, with nothing fused or hidden.
double lowered_sum(const Graph& graph, const FunctionSpec& function, const Costs& costs,
                   const std::string& layout) {
  LowerOptions options{costs.mesh(), Layout::parse(layout), {function}, composite_kernels(), {}, {}};
  options.init = options.fuse = options.overlap = false;
  options.bucket_bytes = 0;
  const Program program = lower(graph, options);
  return step_sum(program.functions[0], costs);
}

std::string rules_of(const LayoutProblem& problem, const Mesh& mesh, int value,
                     const TensorLayout& layout) {
  const FlatValue& v = problem.flat().values[static_cast<size_t>(value)];
  std::string rules;
  for (int d = 0; d < v.shape.rank(); ++d) {
    std::string axes;
    for (const int a : layout.dims[static_cast<size_t>(d)])
      axes += (axes.empty() ? "" : "+") + mesh.axes()[static_cast<size_t>(a)].name;
    rules += fmt::format("@/{}/ {}:{};", v.name, v.shape[d].name, axes.empty() ? "-" : axes);
  }
  return rules;
}

struct Least {
  double seconds = 1e30;
  std::string layout;
  int64_t tried = 0;
};

/// All layouts of all values of the problem.
Least least_of_all(const Graph& graph, const FunctionSpec& function, const Costs& costs,
                   const LayoutProblem& problem) {
  std::vector<std::vector<std::string>> rules;
  for (const int v : problem.values()) {
    rules.emplace_back();
    for (const TensorLayout& layout : problem.layouts_of(v))
      rules.back().push_back(rules_of(problem, costs.mesh(), v, layout));
  }
  Least least;
  std::vector<size_t> pick(rules.size(), 0);
  while (true) {
    std::string layout;
    for (size_t i = 0; i < rules.size(); ++i) layout += rules[i][pick[i]];
    const double seconds = lowered_sum(graph, function, costs, layout);
    ++least.tried;
    if (seconds < least.seconds) least.seconds = seconds, least.layout = layout;
    size_t i = rules.size();
    while (i > 0 && ++pick[i - 1] == rules[i - 1].size()) pick[--i] = 0;
    if (i == 0) return least;
  }
}

/// A step of a small random model: products, pointwise ops and sums of four dims.
struct RandomStep {
  Graph graph;
  FunctionSpec function;

  RandomStep(std::mt19937_64& random, int ops, bool updates) {
    const auto draw = [&](size_t below) { return static_cast<size_t>(random() % below); };
    const std::array<int64_t, 4> sizes{8, 256, 1024, 4096};
    std::vector<Dim> dims;
    for (const char* name : {"p", "q", "r"}) dims.emplace_back(name, sizes[draw(4)]);
    std::vector<Tensor> pool{graph.input("x", {dims[0], dims[1]}, DType::float32)};
    const Tensor w = graph.parameter("w", {dims[1], dims[2]}, nn::zeros(), DType::float32);
    pool.push_back(w);
    for (int i = 0; i < ops; ++i) {
      const Tensor a = i == 0 ? pool[0] : pool[pool.size() - 1 - draw(std::min<size_t>(2, pool.size()))];
      const Tensor b = i == 0 ? w : pool[draw(pool.size())];
      const size_t kind = i == 0 ? 0 : draw(5);
      if (kind < 2) {
        std::vector<Dim> out;
        for (const Dim& d : dims) {
          const bool in_a = a.shape().has(d.name), in_b = b.shape().has(d.name);
          if (in_a != in_b || (in_a && draw(2) == 0)) out.push_back(d);
        }
        pool.push_back(einsum({a, b}, Shape(out)));
      } else if (kind == 2 && a.shape() == b.shape()) {
        pool.push_back(a + b);
      } else if (kind == 3) {
        pool.push_back(tanh(a));
      } else {
        pool.push_back(a * 3.0);
      }
    }
    if (updates) {
      const Tensor last = pool.back();
      graph.update(w, w * sum_all(last));
      function = {"f", {sum_all(last)}, true};
    } else {
      function = {"f", {pool.back()}, false};
    }
  }
};

}  // namespace

TEST_CASE("layout problem: its optimum is that of all layouts, lowered", "[plan][choice]") {
  std::mt19937_64 random(7);
  int equal = 0, graphs = 0;
  for (int i = 0; i < 60; ++i) {
    const bool two = i % 4 == 3;
    const RandomStep step(random, two ? 2 : 3, i % 2 == 1);

    const Costs costs(a100(), Mesh::parse(two ? "a:2;b:4" : "a:8"));
    LayoutProblem problem(step.graph, step.function, costs, composite_kernels());
    const solver::Solution solution = solver::solve(problem.problem());
    double all = 1;
    for (const int v : problem.values()) all *= static_cast<double>(problem.layouts_of(v).size());
    if (all > 3000) continue;
    const Least least = least_of_all(step.graph, step.function, costs, problem);
    std::string rules;
    for (const int v : problem.values())
      rules += rules_of(problem, costs.mesh(), v, problem.layout(solution.choice, v));
    const double found = lowered_sum(step.graph, step.function, costs, rules);
    const double cost = LayoutProblem::seconds(solution.cost);
    INFO(step.graph.to_string());
    ++graphs;
    equal += std::abs(cost / least.seconds - 1) < 1e-6;
    fmt::print("{} tried {} problem {:.4g} all {:.4g} ratio {:.5f} found {:.5f} optimal {} nodes {}\n", i, least.tried, cost, least.seconds, cost/least.seconds, found / least.seconds, solution.optimal, problem.problem().nodes.size());
    if (std::abs(cost / least.seconds - 1) > 1e-6) fmt::print("{}\n  all: {}\n  problem: {}\n", step.graph.to_string(), least.layout, rules);
    CHECK(cost <= least.seconds * (1 + 1e-6));
  }
  CHECK(equal == graphs);
}

}  // namespace tessera::test
