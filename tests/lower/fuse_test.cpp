// Fusing changes no bit of any result, fuses what it should, and leaves alone what it must.
#include <cstring>
#include <random>
#include <set>

#include "base/fail.h"
#include "compile/kernel_info.h"
#include "lower/lower.h"
#include "lower/passes/fuse_pointwise.h"
#include "lower/passes/plan_memory.h"
#include "lower/passes/recompute_rows.h"
#include "support/catch.h"
#include "support/program_run.h"
#include "tessera/nn.h"
#include "tessera/optim.h"

namespace tessera::test {

namespace TESSERA_FILE {

Program lowered(const Graph& graph, const std::vector<FunctionSpec>& functions, bool fuse,
                const std::string& mesh = "x:1", const std::string& layout = "",
                Target target = Target::any) {
  LowerOptions options{Mesh::parse(mesh),
                       Layout::parse(layout),
                       functions,
                       composite_kernels(),
                       // What run_program() needs, which shares the steps of one rank.
                       [](const Step& step) { return workspace_bytes(step, 3, 0); },
                       {}};
  options.fuse = fuse;
  options.target = target;
  return lower(graph, options);
}

Program with_rows_recomputed(Program program) {
  recompute_rows(program);
  plan_memory(program);
  return program;
}

Initializer start(double value) {
  return
      [=](Graph& g, const Shape& shape, DType dtype) { return constant(g, value, dtype, shape); };
}

Whole random_whole(const Tensor& t, std::mt19937_64& random) {
  Whole whole;
  whole.dims = t.shape().names();
  for (const Dim& d : t.shape()) whole.sizes.push_back(d.size);
  int64_t count = 1;
  for (int64_t size : whole.sizes) count *= size;
  std::normal_distribution<double> normal;
  for (int64_t i = 0; i < count; ++i) whole.data.push_back(as_dtype(normal(random), t.dtype()));
  return whole;
}

/// The names whose bits differ.
std::string differences(const Wholes& x, const Wholes& y) {
  std::string names = x.size() == y.size() ? "" : "sizes";
  for (const auto& [name, whole] : x) {
    const auto& other = y.at(name);
    if (whole.data.size() != other.data.size() ||
        std::memcmp(whole.data.data(), other.data.data(), whole.data.size() * sizeof(double)) != 0)
      names += " " + name;
  }
  return names;
}

/// The executor's contract: before first_update nothing is stored.
bool stores_at_the_end(const Program& program) {
  for (const Function& f : program.functions) {
    if (f.kind == FunctionKind::init) continue;
    for (int s = 0; s < f.first_update; ++s) {
      for (const View& v : f.steps[s].out) {
        if (program.buffers[v.buffer].arena == ArenaKind::persistent) return false;
      }
    }
  }
  return true;
}

struct RandomDag {
  Graph graph;
  std::vector<Tensor> values, outputs;
  Wholes feeds;

  explicit RandomDag(uint64_t seed) : random_(seed) {
    const Dim p("p", 5), q("q", 5), r("r", 67);
    const int of = draw(4);
    const DType type = of == 0 ? DType::bfloat16 : of == 1 ? DType::float16 : DType::float32;
    for (const Shape& shape :
         {Shape{p, q, r}, Shape{q, p, r}, Shape{q, r}, Shape{r}, Shape{p, q}, Shape{}}) {
      const std::string name = fmt::format("in{}", values.size());
      values.push_back(draw(3) == 0 ? graph.parameter(name, shape, start(0), type)
                                    : graph.input(name, shape, type));
      feeds[name] = random_whole(values.back(), random_);
      if (graph.find_stored(values.back().id())) stored_.push_back(values.back());
    }
    values.push_back(iota(graph, r, DType::float32));
    values.push_back(random_uniform(graph, {p, q, r}));
    for (size_t k = values.size() - 2; k < values.size(); ++k) {
      if (type != DType::float32) values[k] = cast(values[k], type);
    }
    const int count = 10 + static_cast<int>(draw(60));
    for (int k = 0; k < count; ++k) values.push_back(next());
    for (int k = 0; k < 4; ++k) outputs.push_back(values[values.size() - 1 - draw(10)]);
    for (const Tensor& s : stored_) update(s);
  }

 private:
  uint64_t draw(uint64_t below) { return random_() % below; }
  Tensor pick() {
    return values[draw(3) == 0 ? draw(values.size())
                               : values.size() - 1 - draw(std::min<uint64_t>(8, values.size()))];
  }

  Tensor next() {
    Tensor x = pick(), y = pick();
    switch (draw(12)) {
      case 0:
        return exp(clip(x, -3, 3));
      case 1:
        return gelu(x);
      case 2:
        return x * 0.5;
      case 3:
        return where(x < y, x, y * 2.0);
      case 4:
        return x.shape().rank() > 0 ? reduce_sum(x, Axes(x.shape()[0].name)) : tanh(x);
      case 5:
        return x.shape().rank() > 1 ? x - reduce_max(x, Axes(x.shape()[1].name)) : abs(x);
      case 6:
        return square(clip(x, -2, 2));
      case 7:
        return clip(x, -2, 2) * clip(y, -2, 2);
      case 8:
        return x - y;
      default:
        return x + y;
    }
  }

  /// Some updates keep their value visible, some use the old one of another tensor.
  void update(Tensor s) {
    Tensor value = s * 0.9;
    for (int k = 0; k < 2; ++k) {
      Tensor x = pick();
      while (x.shape().rank() > 0 && !contains(s, x)) x = reduce_sum(x, Axes(x.shape()[0].name));
      value = value + x;
    }
    if (draw(3) == 0 && stored_.size() > 1) {
      Tensor other = stored_[draw(stored_.size())];
      if (other.shape() == s.shape()) value = value * other;
    }
    if (draw(4) == 0) outputs.push_back(value);
    graph.update(s, value);
  }

  static bool contains(Tensor whole, Tensor part) {
    for (const Dim& d : part.shape()) {
      if (!whole.shape().has(d.name)) return false;
    }
    return true;
  }

  std::mt19937_64 random_;
  std::vector<Tensor> stored_;
};

View matrix(int buffer, std::vector<int64_t> strides, int64_t offset = 0) {
  return View{buffer, DType::float32, {8, 8}, std::move(strides), offset, {}};
}

Step unary(PointwiseOp code, const View& in, const View& out) {
  Step step;
  step.kernel = KernelKind::pointwise;
  step.in = {in};
  step.out = {out};
  Instr load, instr;
  load.code = PointwiseOp::load;
  load.slot = 0;
  instr.code = code;
  instr.a = 0;
  step.pointwise = {{load, instr}, {1}};
  return step;
}

/// A program of these steps whose buffer 0 and last buffer are ports.
Program program_of(std::vector<Step> steps, int buffers) {
  Program program;
  for (int b = 0; b < buffers; ++b) program.buffers.push_back({"b", ArenaKind::transient, 1024, 0});
  program.ports.resize(2);
  program.ports[0].view = matrix(0, {8, 1});
  program.ports[1].view = matrix(buffers - 1, {8, 1});
  const int count = static_cast<int>(steps.size());
  program.functions.push_back({"f", std::move(steps), {0}, {1}, false, count});
  return program;
}

size_t fused_steps(std::vector<Step> steps, int buffers) {
  Program program = program_of(std::move(steps), buffers);
  fuse_pointwise(program);
  return program.functions[0].steps.size();
}

TEST_CASE("fusing changes no bit of random pointwise graphs") {
  Cluster cluster = Cluster::threads(1);
  size_t before = 0, after = 0, recomputed = 0;
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    RandomDag dag(seed);
    const std::vector<FunctionSpec> functions = {{"step", dag.outputs, true}};
    const Program plain = lowered(dag.graph, functions, false);
    const Program fused = lowered(dag.graph, functions, true);
    before += plain.functions[plain.function("step")].steps.size();
    after += fused.functions[fused.function("step")].steps.size();
    INFO("seed " << seed);
    REQUIRE(stores_at_the_end(fused));
    const Wholes expected = run_program(plain, cluster, "step", dag.feeds);
    REQUIRE(differences(expected, run_program(fused, cluster, "step", dag.feeds)) == "");
    const Program rows = with_rows_recomputed(fused);
    recomputed += to_string(rows) == to_string(fused) ? 0 : 1;
    REQUIRE(differences(expected, run_program(rows, cluster, "step", dag.feeds)) == "");
  }
  CHECK(after * 2 < before);
  CHECK(recomputed > 5);
}

TEST_CASE("fusing changes no bit of a split model in training") {
  Graph graph;
  nn::GptOptions options;
  options.layers = 2, options.d_model = 16, options.heads = 4, options.ff = 32, options.length = 8;
  options.batch = 4, options.vocab = 12, options.dropout = 0.1;
  const nn::Model model = nn::gpt(graph, options);
  minimize(model.loss, graph.input("lr", {}, DType::float32), adam(), {1.0});
  std::mt19937_64 random(3);
  Wholes feeds;
  for (const Tensor& t : model.inputs) {
    feeds[t.name()] = random_whole(t, random);
    for (double& x : feeds[t.name()].data) x = std::min(11.0, std::floor(std::abs(4 * x)));
  }
  for (const Stored& s : graph.stored()) {
    const Tensor t(&graph, s.value);
    feeds[t.name()] = random_whole(t, random);
    for (double& x : feeds[t.name()].data) x = std::abs(0.1 * x);
  }
  feeds["lr"] = Whole({}, {}, 0.01);
  for (const char* layout :
       {"", "batch=x", "batch=x; ff=y; heads=y; vocab=y", "batch=x; @state d_model=y"}) {
    const std::vector<FunctionSpec> functions = {{"train", {model.loss}, true}};
    const std::string mesh = *layout ? "x:2,y:2" : "x:1";
    Cluster cluster = Cluster::threads(*layout ? 4 : 1);
    const Program plain = lowered(graph, functions, false, mesh, layout);
    const Program fused = lowered(graph, functions, true, mesh, layout);
    INFO(layout);
    CHECK(stores_at_the_end(fused));
    CHECK(fused.functions[1].steps.size() * 2 < plain.functions[1].steps.size());
    const Wholes expected = run_program(plain, cluster, "train", feeds);
    CHECK(differences(expected, run_program(fused, cluster, "train", feeds)) == "");
    CHECK(differences(expected,
                      run_program(with_rows_recomputed(fused), cluster, "train", feeds)) == "");
  }
}

TEST_CASE("the gradient of a norm reads its operand, mean and deviation, not what was normalized") {
  Graph graph;
  const Dim p("p", 6), q("q", 9);
  Tensor x = graph.input("x", {p, q}, DType::bfloat16),
         w = graph.input("w", {q, q.renamed("r")}, DType::float32);
  Tensor scale = graph.input("scale", {q}, DType::bfloat16),
         shift = graph.input("shift", {q}, DType::bfloat16);
  Tensor y = einsum({cast(layer_norm(x, "q", scale, shift), DType::float32), w});
  Tensor grad = gradients(sum_all(square(y)), {x})[0].named("grad");
  const Program fused = lowered(graph, {{"f", {grad}, false}}, true);
  const Program rows = with_rows_recomputed(fused);
  const auto bytes_between = [](const Program& program) {
    int64_t bytes = 0;
    for (const Buffer& b : program.buffers) bytes += b.arena == ArenaKind::transient ? b.bytes : 0;
    return bytes;
  };
  INFO(to_string(rows));
  // The normalized values in float32 go, a mean a row comes.
  CHECK(bytes_between(fused) - bytes_between(rows) == 4 * (6 * 9 - 6));
  Cluster cluster = Cluster::threads(1);
  std::mt19937_64 random(7);
  Wholes feeds;
  for (const Tensor& t : {x, w, scale, shift}) feeds[t.name()] = random_whole(t, random);
  CHECK(differences(run_program(fused, cluster, "f", feeds),
                    run_program(rows, cluster, "f", feeds)) == "");
}

TEST_CASE("the update of a parameter by AdamW is one step in place") {
  Graph graph;
  const Dim a("a", 12), b("b", 20), c("c", 7);
  Tensor x = graph.input("x", {a}, DType::float32);
  Tensor w1 = graph.parameter("w1", {a, b}, start(0.1));
  Tensor w2 = graph.parameter("w2", {b, c}, start(0.2));
  Tensor loss = sum_all(square(einsum({einsum({x, w1}), w2})));
  AdamOptions options;
  options.weight_decay = 0.1;
  minimize(loss, graph.input("lr", {}, DType::float32), adam(options), {1.0});
  const Program program = lowered(graph, {{"train", {loss}, true}}, true);
  const Function& f = program.functions[program.function("train")];
  REQUIRE(f.updates);
  int updates = 0, copies = 0;
  for (size_t s = f.first_update; s < f.steps.size(); ++s) {
    copies += f.steps[s].kernel == KernelKind::copy;
    if (f.steps[s].kernel != KernelKind::pointwise) continue;
    ++updates;
    CHECK(f.steps[s].out.size() == 3);
    for (const View& v : f.steps[s].out)
      CHECK(program.buffers[v.buffer].arena == ArenaKind::persistent);
  }
  CHECK(updates == 2);
  CHECK(copies == 1);  // the step counter, which all updates read
  CHECK(stores_at_the_end(program));
}

TEST_CASE("initial values are computed in the tensors' own memory, those of loops too") {
  Graph graph;
  const Dim a("a", 12), b("b", 200);
  Tensor x = graph.input("x", {a}, DType::float32);
  Tensor y = repeat({"layers", 5}, x, [&](Tensor t) {
    Tensor w = graph.parameter("w", {a, b}, nn::normal(0.1));
    return reduce_sum(mul(w, t), "b");
  });
  Tensor loss = sum_all(square(y));
  minimize(loss, graph.input("lr", {}, DType::float32), adam({}), {1.0});
  const auto bytes_beside = [&](const Program& program) {
    std::set<int> buffers;
    for (const Step& step : program.functions[program.function("init")].steps) {
      visit_views(step, [&](const View& v) {
        if (program.buffers[v.buffer].arena == ArenaKind::transient) buffers.insert(v.buffer);
      });
    }
    int64_t bytes = 0;
    for (const int i : buffers) bytes += program.buffers[i].bytes;
    return bytes;
  };
  const std::vector<FunctionSpec> functions = {{"train", {loss}, true}};
  const Program fused = lowered(graph, functions, true);
  INFO(to_string(fused));
  // Not even a layer's random numbers in float32; their bits have 8 bytes each.
  CHECK(bytes_beside(fused) < 12 * 200 * 8 + 1000);
  CHECK(bytes_beside(lowered(graph, functions, false)) > 5 * 12 * 200 * 4);
  Cluster cluster = Cluster::threads(1);
  CHECK(differences(run_program(lowered(graph, functions, false), cluster, "init", Wholes()),
                    run_program(fused, cluster, "init", Wholes())) == "");
}

TEST_CASE("sources are not materialized for pointwise steps") {
  Graph graph;
  const Dim p("p", 6), q("q", 9);
  Tensor x = graph.input("x", {p, q}, DType::float32);
  Tensor y = x * 2.0 + iota(graph, q, DType::float32) - iota(graph, p, DType::float32);
  const Program program = lowered(graph, {{"f", {y}, false}}, true);
  REQUIRE(program.functions[0].steps.size() == 1);
  CHECK(program.functions[0].steps[0].in.size() == 1);
  CHECK(program.buffers.size() == 2);
}

TEST_CASE("a reduction along dense rows joins the steps around it; others keep them apart") {
  Graph graph;
  const Dim p("p", 6), q("q", 9), r("r", 5000);
  Tensor x = graph.input("x", {p, q}, DType::float32);
  Tensor e = exp(x);
  auto steps = [&](Tensor y) {
    return lowered(graph, {{"f", {y}, false}}, true).functions[0].steps.size();
  };
  CHECK(steps(e / reduce_sum(e, Axes("q"))) == 1);
  CHECK(steps(e * rsqrt(reduce_sum(e, Axes("q")) + 1.0)) == 1);
  CHECK(steps(e / reduce_sum(e, Axes("p"))) == 3);
  Tensor sum = reduce_sum(e, Axes("q"));
  CHECK(steps((e - sum) / reduce_sum(e * sum, Axes("p"))) == 3);
  Tensor z = exp(graph.input("z", {p, r}, DType::float32));
  CHECK(steps(z / reduce_sum(z, Axes("r"))) == 3);
}

TEST_CASE("views of one buffer that differ are not merged") {
  const View whole0 = matrix(0, {8, 1}), whole1 = matrix(1, {8, 1}), whole2 = matrix(2, {8, 1});
  CHECK(fused_steps(
            {unary(PointwiseOp::exp, whole0, whole1), unary(PointwiseOp::neg, whole1, whole2)},
            3) == 1);
  CHECK(fused_steps({unary(PointwiseOp::exp, whole0, whole1),
                     unary(PointwiseOp::neg, matrix(1, {1, 8}), whole2)},
                    3) == 2);
  CHECK(fused_steps({unary(PointwiseOp::exp, whole0, whole1),
                     unary(PointwiseOp::neg, matrix(1, {8, 0}), whole2)},
                    3) == 2);
  CHECK(fused_steps({unary(PointwiseOp::exp, whole0, whole1),
                     unary(PointwiseOp::neg, matrix(1, {8, 1}, 64), whole2)},
                    3) == 2);
  View shifted = whole1;
  shifted.shift.axis_terms = {{0, 8}};
  CHECK(fused_steps(
            {unary(PointwiseOp::exp, whole0, whole1), unary(PointwiseOp::neg, shifted, whole2)},
            3) == 2);
}

TEST_CASE("a step stays behind the readers of what it overwrites") {
  const View port = matrix(0, {8, 1}), half = matrix(0, {8, 1}, 64), a = matrix(1, {8, 1}),
             b = matrix(2, {8, 1});
  Program program = program_of({unary(PointwiseOp::exp, port, a), unary(PointwiseOp::neg, a, half),
                                unary(PointwiseOp::abs, port, b)},
                               3);
  fuse_pointwise(program);
  const auto& steps = program.functions[0].steps;
  REQUIRE(steps.size() >= 2);
  CHECK(steps.back().pointwise.code.back().code == PointwiseOp::abs);
}

TEST_CASE("updates that read what another update stores keep their order") {
  Graph graph;
  const Dim p("p", 6);
  Tensor a = graph.parameter("a", {p}, start(1)), b = graph.parameter("b", {p}, start(2)),
         c = graph.parameter("c", {p}, start(3));
  graph.update(a, b * 2.0 + c);
  graph.update(b, reduce_sum(a, Axes("p")) + b);
  graph.update(c, c + 1.0);
  std::mt19937_64 random(5);
  Wholes feeds;
  for (const Tensor& t : {a, b, c}) feeds[t.name()] = random_whole(t, random);
  Cluster cluster = Cluster::threads(1);
  const std::vector<FunctionSpec> functions = {{"f", {sum_all(a)}, true}};
  const Program fused = lowered(graph, functions, true);
  CHECK(stores_at_the_end(fused));
  CHECK(differences(run_program(lowered(graph, functions, false), cluster, "f", feeds),
                    run_program(fused, cluster, "f", feeds)) == "");
}

TEST_CASE("squares that are summed are not stored, and rows are summed first") {
  Graph graph;
  Tensor x = graph.parameter("x", {Dim("p", 6), Dim("q", 40), Dim("r", 1000)}, start(0)),
         small = graph.parameter("small", {Dim("q", 40), Dim("r", 1000)}, start(0));
  Tensor norm = sum_all(square(x)).named("norm"), few = sum_all(square(small)).named("few");
  graph.update(x, x * norm);
  std::mt19937_64 random(7);
  Wholes feeds;
  for (const Tensor& t : {x, small}) feeds[t.name()] = random_whole(t, random);
  double want = 0;
  for (double v : feeds["x"].data) want += v * v;
  Cluster cluster = Cluster::threads(2);
  for (const std::string layout : {"", "q:a", "r:a"}) {
    INFO(layout);
    const std::vector<FunctionSpec> functions = {{"f", {norm, few}, true}};
    const Program program = lowered(graph, functions, true, "a:2", layout, Target::cpu),
                  unfused = lowered(graph, functions, false, "a:2", layout, Target::cpu);
    CHECK(stores_at_the_end(program));
    std::vector<int64_t> reduced;
    for (const Step& step : program.functions.back().steps) {
      if (step.kernel == KernelKind::reduce) reduced.push_back(step.in[0].elements());
    }
    const int64_t rows = layout == "q:a" ? 120 : 240, elements = layout.empty() ? 40000 : 20000;
    CHECK(reduced == std::vector<int64_t>{rows, elements});
    const Wholes values = run_program(program, cluster, "f", feeds);
    CHECK(std::abs(values.at("norm").data[0] - want) < 1e-5 * want);
    CHECK(differences(values, run_program(unfused, cluster, "f", feeds)) == "");
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
