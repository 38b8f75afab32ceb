// The problem of choice of a step against all layouts of all tensors, each lowered.
#include "plan/tensor_layouts/layout_problem.h"

#include <random>

#include "compile/kernel_info.h"
#include "lower/lower.h"
#include "plan/all_layouts.h"
#include "plan/optimum_rules.h"
#include "plan/plan_models.h"
#include "plan/tensor_layouts/step_sum.h"
#include "support/catch.h"
#include "support/expect_error.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// The time of the steps that lowering makes of a layout, with nothing fused or hidden.
double lowered_sum(const Graph& graph, const FunctionSpec& function, const Costs& costs,
                   const std::string& layout) {
  LowerOptions options{
      costs.mesh(), Layout::parse(layout), {function}, composite_kernels(), {}, {}};
  options.init = options.fuse = options.overlap = false;
  options.bucket_bytes = 0;
  const Program program = lower(graph, options);
  return step_sum(program.functions[0], costs);
}

/// A step of a small random model: products, pointwise ops and sums of four dims.
struct RandomStep {
  Graph graph;
  FunctionSpec function;

  RandomStep(std::mt19937_64& random, int ops, bool updates) {
    const auto draw = [&](size_t below) { return static_cast<size_t>(random() % below); };
    const std::array<int64_t, 4> sizes{256, 1024, 4096, 16384};
    std::vector<Dim> dims;
    for (const char* name : {"p", "q", "r"}) dims.emplace_back(name, sizes[draw(4)]);
    std::vector<Tensor> pool{graph.input("x", {dims[0], dims[1]}, DType::float32)};
    const Tensor w = graph.parameter("w", {dims[1], dims[2]}, nn::zeros(), DType::float32);
    pool.push_back(w);
    for (int i = 0; i < ops; ++i) {
      const Tensor a =
          i == 0 ? pool[0] : pool[pool.size() - 1 - draw(std::min<size_t>(2, pool.size()))];
      const Tensor b = i == 0 ? w : pool[draw(pool.size())];
      const size_t kind = i == 0 ? 0 : draw(6);
      if (kind < 3) {
        std::vector<Dim> out;
        for (const Dim& d : dims) {
          const bool in_a = a.shape().has(d.name), in_b = b.shape().has(d.name);
          if (in_a != in_b || (in_a && draw(2) == 0)) out.push_back(d);
        }
        pool.push_back(einsum({a, b}, Shape(out)));
      } else if (kind == 3 && a.shape() == b.shape()) {
        pool.push_back(a + b);
      } else if (kind == 4) {
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

/// Two products with a residual, and one with a table that is indexed.
FunctionSpec residual(Graph& g) {
  const Dim rows("rows", 4096), in("in", 1024), mid("mid", 4096);
  const Tensor x = g.input("x", {rows, in}, DType::float32);
  const Tensor up = g.input("up", {in, mid}, DType::float32);
  const Tensor h = einsum({x, up}, {rows, mid});
  const Tensor down = g.input("down", {mid, in}, DType::float32);
  return {"f", {x + einsum({h, down}, {rows, in})}, false};
}

FunctionSpec lookup(Graph& g) {
  const Dim rows("rows", 4096), words("words", 16384), width("width", 1024);
  const Tensor table = g.parameter("table", {words, width}, nn::zeros(), DType::float32);
  const Tensor found = gather(table, g.input("i", {rows}, DType::int32), "words");
  g.update(table, table * reduce_sum(found, "rows"));
  return {"f", {sum_all(found)}, true};
}

/// Compares the optimum with all layouts, if there are at most so many; else returns false.
bool examine(const Graph& graph, const FunctionSpec& function, const char* mesh, double most) {
  const Costs costs(a100(), Mesh::parse(mesh));
  LayoutProblem problem(graph, function, costs, composite_kernels());
  if (count_layouts(problem) > most) return false;
  const solver::Solution solution = solver::solve(problem.problem());
  const Least least = least_of_all(problem, costs.mesh(), [&](const std::string& layout) {
    return lowered_sum(graph, function, costs, layout);
  });
  INFO(graph.to_string() << "on " << mesh << ", least with " << least.layout);
  CHECK(solution.optimal);
  CHECK(LayoutProblem::seconds(solution.cost) == Approx(least.seconds).epsilon(1e-6));
  return true;
}

std::string text_of(const Plan& plan) { return to_string(plan); }

TEST_CASE("layout problem: its optimum is that of all layouts, lowered", "[plan][choice]") {
  const auto examined = [](const Graph& graph, const FunctionSpec& function, const char* mesh) {
    return examine(graph, function, mesh, 800);
  };
  for (const char* mesh : {"a:2", "a:8"}) {
    Graph a, b;
    CHECK(examined(a, residual(a), mesh));
    CHECK(examined(b, lookup(b), mesh));
  }
  std::mt19937_64 random(7);
  int graphs = 0;
  for (int i = 0; i < 80; ++i) {
    const bool two = i % 4 == 3;
    const RandomStep step(random, two ? 2 : 3, i % 2 == 1);
    graphs += examined(step.graph, step.function, two ? "a:2;b:4" : "a:8");
  }
  CHECK(graphs >= 50);
}

TEST_CASE("layout problem: ops are computed blockwise over few ranks only", "[plan][choice]") {
  const auto blockwise = [](const char* mesh) {
    Graph g;
    const Dim rows("length", 64), width("d_head", 64), keys("memory_length", 64);
    const Tensor q = g.input("q", {rows, width}, DType::bfloat16),
                 k = g.input("k", {keys, width}, DType::bfloat16),
                 v = g.input("v", {keys, width}, DType::bfloat16);
    const FunctionSpec function{"f", {attention(q, k, v)}, false};
    const Costs costs(a100(), Mesh::parse(mesh));
    const FlatOps all(g, function, composite_kernels());
    OpSplits splits(costs, composite_kernels());
    const std::vector<OpSplit>& ways = splits.of(all, all.ops.at(0));
    return std::any_of(ways.begin(), ways.end(), [](const OpSplit& way) {
      return !way.in[0].dims[0].empty() && !way.in[1].dims[0].empty();
    });
  };
  CHECK(blockwise("a:16"));
  CHECK(!blockwise("a:32"));
}

TEST_CASE("layout problem: one layer stands for all", "[plan][choice]") {
  const PlanModel model = gpt_model(3, options_of(512, 256));
  const PlanStep one = model.build({1}), two = model.build({2}), three = model.build({3});
  const Repeats repeats = repeats_of(*one.graph, *two.graph, 3);
  std::map<std::string, int64_t> of;
  for (const Value& value : one.graph->values())
    of[value.name] = repeats.of_node[static_cast<size_t>(value.node)];
  CHECK(of.at("gpt.block0.mlp.gelu") == 3);
  CHECK(of.at("gpt.block0.mlp.up.w") == 3);
  CHECK(of.at("gpt.gather") == 1);
  CHECK(of.at("gpt.logits") == 1);
  const auto joins = [&](const std::string& a, const std::string& b) {
    return std::any_of(repeats.seams.begin(), repeats.seams.end(), [&](const auto& seam) {
      const std::string &x = one.graph->value(seam.first).name,
                        &y = one.graph->value(seam.second).name;
      return (x == a && y == b) || (x == b && y == a);
    });
  };
  CHECK(joins("gpt.cast", "gpt.block0.add_1"));
  for (const char* mesh : {"a:2", "a:8"}) {
    const Costs costs(a100(), Mesh::parse(mesh));
    const auto seconds = [&](const PlanStep& step, const Repeats& r) {
      LayoutProblem problem(*step.graph, step.functions[0], costs, composite_kernels(), r);
      const solver::Solution solution = solver::solve(problem.problem());
      CHECK(solution.optimal);
      return LayoutProblem::seconds(solution.cost);
    };
    // Layers that may differ from each other save little.
    const double alike = seconds(one, repeats), each = seconds(three, {});
    CHECK(alike >= each * (1 - 1e-6));
    CHECK(alike <= each * 1.03);
  }
}

TEST_CASE("layout problem: a transfer stands alone where only small ops can be beside it",
          "[plan][choice]") {
  enum class Side { none, before, beside, summed, kept };
  const auto is_alone = [](Side side) {
    Graph g;
    const Dim rows("rows", 1 << 16), in("in", 1024), out("out", 1024), last("last", 1024);
    const auto product = [&](const char* name, const char* weight, const Dim& to) {
      const Tensor w = g.parameter(weight, {in, to}, nn::zeros(), DType::float32);
      return einsum({g.input(name, {rows, in}, DType::float32), w}, {rows, to});
    };
    std::vector<Tensor> results;
    if (side == Side::before) results.push_back(product("x0", "w0", last));
    const Tensor y = product("x", "w", out), z = square(y);
    const bool is_square = side == Side::summed || side == Side::kept;
    const Tensor sum = reduce_sum(is_square ? z : y, "rows").named("sum");
    if (side == Side::kept) results.push_back(z);
    if (side == Side::beside) results.push_back(product("x0", "w0", last));
    const Tensor w2 = g.parameter("w2", {out, last}, nn::zeros(), DType::float32);
    results.push_back(einsum({tanh(y - sum), w2}, {rows, last}));
    const FunctionSpec step{"f", results, false};
    const Costs costs(a100(), Mesh::parse("a:8"));
    const LayoutProblem problem(g, step, costs, composite_kernels());
    int link = -1;
    for (size_t v = 0; v < problem.flat().values.size(); ++v) {
      if (problem.flat().values[v].of == sum.id())
        link = problem.order().link_of(static_cast<int>(v));
    }
    REQUIRE(link >= 0);
    return problem.order().is_alone(link);
  };
  CHECK(is_alone(Side::none));
  CHECK(is_alone(Side::before));
  CHECK_FALSE(is_alone(Side::beside));
  CHECK(is_alone(Side::summed));  // what only a sum reads is there before the sum
  CHECK_FALSE(is_alone(Side::kept));
}

TEST_CASE("layout problem: a loop is refused by name", "[plan][choice]") {
  Graph g;
  const Tensor x = g.input("x", {Dim("p", 8)}, DType::float32);
  const Tensor y = repeat(Dim("layers", 3), x, [](Tensor z) { return tanh(z); });
  const FunctionSpec function{"f", {y}, false};
  const Costs costs(a100(), Mesh::parse("a:2"));
  expect_error(ErrorKind::unsupported, {"single tensors", "inside of loops"},
               [&] { LayoutProblem(g, function, costs, composite_kernels()); });
}

TEST_CASE("plan: wanted layouts become the fewest scoped rules", "[plan][choice]") {
  Graph g;
  const Dim rows("rows", 64), in("in", 32);
  Tensor x = g.input("x", {rows, in}, DType::float32);
  std::vector<WantedLayout> wanted;
  const auto want = [&](Tensor t, std::vector<int> on_rows) {
    wanted.push_back({t.id(), {{std::move(on_rows), {}}, {}}, 1});
    return t;
  };
  {
    const Scope scope(g, "first");
    x = want(tanh(want(sigmoid(x), {0})), {0});
  }
  {
    const Scope scope(g, "second");
    x = want(tanh(want(sigmoid(x), {})), {});
  }
  const Mesh mesh = Mesh::parse("a:2;b:2");
  const auto rules = [&](const std::string& now, size_t most) {
    return rules_towards(g, mesh, now, wanted, most);
  };
  CHECK(rules("", 4) == std::vector<std::string>{"@/*first*/ rows:a"});
  CHECK(rules("rows:a", 4) == std::vector<std::string>{"@/*second*/ rows:-"});
  CHECK(rules("rows:a;@/*second*/ rows:-", 4).empty());
  CHECK(rules("in:b", 4).size() == 2);  // one for each scope
  CHECK(rules("in:b", 1).size() == 1);
}

TEST_CASE("plan: all layouts of single tensors are compared with the plan's", "[plan][choice]") {
  const PlanModel model = gpt_model(2, options_of(512, 256));
  PlanOptions options;
  options.seconds = 20;
  CHECK(plan(model, Mesh::parse("data:4"), a100(), options).tensors.tensors == 0);
  options.each_tensor = true;
  const Plan found = plan(model, Mesh::parse("data:4"), a100(), options);
  const PlanTensors& t = found.tensors;
  INFO(text_of(found));
  CHECK(t.left_out.empty());
  CHECK(t.tensors > 100);
  CHECK(t.ops > 100);
  CHECK(t.bound <= t.least);
  CHECK(t.least <= t.planned * (1 + 1e-6));
  CHECK(t.bound > 0.5 * t.planned);
  CHECK(text_of(found).find("single tensors: ") != std::string::npos);
  const auto left_out = [&](const std::string& mesh, const std::string& layout) {
    options.layout = Layout::parse(layout);
    const Plan other = plan(model, Mesh::parse(mesh), a100(), options);
    CHECK(text_of(other).find("layouts of single tensors are not examined: " +
                              other.tensors.left_out) != std::string::npos);
    return other.tensors.left_out;
  };
  CHECK(left_out("a:1", "*:auto") == "there is one rank");
  CHECK(left_out("a:2;b:2;c:2", "batch,vocab:auto") == "its mesh has more than two axes");
  CHECK(left_out("a:2", "batch:a;vocab:auto") == "every plan keeps the given rule 'batch:a'");
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
