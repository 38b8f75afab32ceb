// Combined and overlapped collectives give the same bits, and happen where they should.
#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "compile/kernel_info.h"
#include "cost/function_time.h"
#include "lower/lower.h"
#include "lower/passes/liveness.h"
#include "lower/passes/start_deadlines.h"
#include "support/catch.h"
#include "support/program_run.h"
#include "tessera/explain.h"
#include "tessera/nn.h"
#include "tessera/optim.h"

namespace tessera::test {

namespace TESSERA_FILE {

struct Training {
  Graph graph;
  std::vector<FunctionSpec> functions;
  Wholes values;

  Training() {
    nn::GptOptions options;
    options.layers = 2;
    options.d_model = 8;
    options.heads = 2;
    options.ff = 16;
    options.length = 4;
    options.vocab = 12;
    options.batch = 4;
    const nn::Model model = nn::gpt(graph, options);
    const Minimized step =
        minimize(model.loss, constant(graph, 0.01), adam({.weight_decay = 0.1}), {.clip = 1});
    functions = {{"train", {model.loss, step.gradient_norm}, true}};
    for (const Tensor& t : model.inputs) {
      Whole whole(t.shape().names(), {4, 4});
      for (size_t i = 0; i < whole.data.size(); ++i)
        whole.data[i] = static_cast<double>((5 * i + 3) % 12);
      values[t.name()] = whole;
    }
    for (const Stored& s : graph.stored()) {
      const Value& v = graph.value(s.value);
      Whole whole(v.shape.names(), {});
      for (const Dim& d : v.shape) whole.sizes.push_back(d.size);
      whole.data.assign(static_cast<size_t>(v.shape.elements()), 0);
      for (size_t i = 0; i < whole.data.size(); ++i)
        whole.data[i] = static_cast<double>(static_cast<float>((7 * i + 1) % 11)) / 16;
      values[v.name] = whole;
    }
  }

  Program lowered(const std::string& layout, int64_t bucket, bool overlap) {
    LowerOptions options{Mesh::parse("a:2;b:2"),
                         Layout::parse(layout),
                         functions,
                         composite_kernels(),
                         [](const Step& step) { return workspace_bytes(step, 1); },
                         {}};
    options.bucket_bytes = bucket;
    options.overlap = overlap;
    return lower(graph, options);
  }
};

nn::GptOptions gpt_of(int64_t layers) {
  nn::GptOptions o;
  o.layers = layers;
  o.d_model = 32;
  o.heads = 2;
  o.ff = 64;
  o.length = 16;
  o.vocab = 32;
  o.batch = 8;
  return o;
}

/// By number: the collectives, and the steps from the start to the wait.
struct Scheduled {
  int collectives = 0, start = -1, wait = -1;
  int64_t bytes = 0;
};

std::map<int, Scheduled> buckets_of(const Program& program) {
  const Function& f = program.functions[program.function("train")];
  std::map<int, Scheduled> result;
  for (size_t s = 0; s < f.steps.size(); ++s) {
    const Step& step = f.steps[s];
    if (step.kind == StepKind::compute) continue;
    Scheduled& e = result[step.number];
    if (step.kind == StepKind::wait) {
      e.wait = static_cast<int>(s);
      continue;
    }
    CHECK((e.collectives == 0 || f.steps[s - 1].number == step.number));
    e.start = static_cast<int>(s);
    e.bytes += std::max(step.in[0].elements(), step.out[0].elements()) * size_of(step.in[0].dtype);
    ++e.collectives;
  }
  return result;
}

int collectives_of(const std::map<int, Scheduled>& buckets) {
  int collectives = 0;
  for (const auto& [number, e] : buckets) collectives += e.collectives;
  return collectives;
}

const std::vector<std::string> kLayouts = {"batch:a;heads,ff,vocab:b", "batch:a;@state d_model:b",
                                           "batch:a+b;@params d_model:a",
                                           "batch:a;ff:b;@grads d_model:b;@/*norm*/ length:b"};

TEST_CASE("combining and overlap change no bit", "[schedule][fast]") {
  for (const std::string& layout : kLayouts) {
    Training t;
    Cluster cluster = Cluster::threads(4);
    const Wholes plain = run_program(t.lowered(layout, 0, false), cluster, "train", t.values);
    for (const int64_t bucket : {int64_t{0}, int64_t{600}, int64_t{1} << 20}) {
      INFO(layout << ", bucket " << bucket);
      const Wholes other = run_program(t.lowered(layout, bucket, true), cluster, "train", t.values);
      REQUIRE(other.size() == plain.size());
      for (const auto& [name, whole] : plain) {
        INFO(name);
        CHECK(std::memcmp(whole.data.data(), other.at(name).data.data(),
                          whole.data.size() * sizeof(double)) == 0);
      }
    }
  }
}

TEST_CASE("gradients are reduced in few buckets of bounded size", "[schedule][fast]") {
  Training t;
  const auto single = buckets_of(t.lowered(kLayouts[0], 0, false));
  const auto few = buckets_of(t.lowered(kLayouts[0], 1 << 20, false));
  const auto bounded = buckets_of(t.lowered(kLayouts[0], 600, false));
  CHECK(collectives_of(single) == static_cast<int>(single.size()));
  CHECK(collectives_of(few) == collectives_of(single));
  CHECK(few.size() * 2 < single.size());
  CHECK(few.size() < bounded.size());
  CHECK(bounded.size() < single.size());
  for (const auto& [number, e] : bounded) CHECK((e.collectives == 1 || e.bytes <= 600));
}

TEST_CASE("parameters that are stored in slices are gathered together", "[schedule][fast]") {
  Training t;
  int together = 0;
  const Program program = t.lowered("batch:a+b;@params d_model:a", 1 << 20, false);
  for (const Step& step : program.functions[program.function("train")].steps) {
    if (!is_collective(step, CollectiveKind::all_gather)) continue;
    together = std::max(together, buckets_of(program).at(step.number).collectives);
  }
  CHECK(together > 4);
}

TEST_CASE("a layer's parameters and gradients travel together though each is cast",
          "[schedule][fast]") {
  for (const bool scan : {false, true}) {
    INFO("scan " << scan);
    Graph g;
    nn::GptOptions o = gpt_of(4);
    o.dtype = DType::bfloat16;
    o.scan = scan;
    const Minimized step = minimize(nn::gpt(g, o).loss, constant(g, 0.01), adam({}), {});
    LowerOptions options{Mesh::parse("a:4"),
                         Layout::parse("batch:a;@params d_model:a"),
                         {{"train", {step.loss}, true}},
                         composite_kernels(),
                         {},
                         {}};
    const Program program = lower(g, options);
    // Those of a layer in a loop's body: one bucket each of gathers, of gathers again for the
    // gradient, and of reductions. Elsewhere there may be a bucket more at either end.
    std::map<CollectiveKind, std::set<int>> numbers;
    std::map<CollectiveKind, int> members;
    for (const Step* s : all_steps(program.functions[program.function("train")])) {
      if (s->kind != StepKind::collective) continue;
      numbers[s->collective].insert(s->number);
      ++members[s->collective];
    }
    const int each = scan ? 1 : 4;
    CHECK(members[CollectiveKind::all_gather] >= 12 * each);
    CHECK(numbers[CollectiveKind::all_gather].size() <= 6);
    CHECK(members[CollectiveKind::reduce_scatter] >= 12 * each);
    CHECK(numbers[CollectiveKind::reduce_scatter].size() <= 4);
  }
}

TEST_CASE("buckets overlap with steps, in no more memory", "[schedule][fast]") {
  for (const std::string& layout : kLayouts) {
    INFO(layout);
    Training t;
    const Program at_once = t.lowered(layout, 600, false), program = t.lowered(layout, 600, true);
    const Function& f = program.functions[program.function("train")];
    int apart = 0;
    for (const auto& [number, e] : buckets_of(at_once)) CHECK(e.wait == e.start + 1);
    for (const auto& [number, e] : buckets_of(program)) {
      apart += e.wait > e.start + 1;
      CHECK(e.start < e.wait);
      CHECK(e.wait < f.first_update);
    }
    CHECK(apart > 3);
    const int64_t peak = peak_live_bytes(at_once, at_once.functions[at_once.function("train")]);
    CHECK(program.transient_bytes <= peak + peak / 4);
  }
}

TEST_CASE("buckets of the same axes start so that each has its turn", "[schedule][fast]") {
  using Starts = std::vector<double>;
  // Needed at the same moment, they queue; a quiet link lets the first wait for its own need.
  CHECK(start_deadlines({{{0}, 1, 100}, {{0}, 3, 100}}, 100) == Starts{0, 25});
  CHECK(start_deadlines({{{0}, 1, 20}, {{0}, 1, 100}}, 100) == Starts{-30, 50});
  // Others have links of their own.
  CHECK(start_deadlines({{{0}, 1, 100}, {{1}, 7, 60}}, 100) == Starts{0, -40});
  CHECK(start_deadlines({}, 100).empty());
  // With a machine it is known how long each takes.
  CHECK(latest_starts({{{0}, 1, 100, 10}, {{0}, 3, 100, 20}}) == Starts{70, 80});
  CHECK(latest_starts({{{0}, 1, 20, 30}, {{1}, 7, 60, 5}}) == Starts{-10, 55});
}

TEST_CASE("what casts a gradient runs where the update needs it", "[schedule][fast]") {
  Graph g;
  nn::GptOptions o = gpt_of(3);
  o.dtype = DType::bfloat16;
  const Minimized step = minimize(nn::gpt(g, o).loss, constant(g, 0.01), adam({}), {.clip = 1});
  LowerOptions options{Mesh::parse("a:4"),
                       Layout::parse("batch:a;@grads d_model:a;@state d_model:a"),
                       {{"train", {step.loss}, true}},
                       composite_kernels(),
                       [](const Step& s) { return workspace_bytes(s, 1); },
                       {}};
  options.bucket_bytes = 0;
  const Program program = lower(g, options);
  int apart = 0, scattered = 0;
  const Function& f = program.functions[program.function("train")];
  for (const auto& [number, e] : buckets_of(program)) {
    if (!is_collective(f.steps[e.start], CollectiveKind::reduce_scatter)) continue;
    ++scattered;
    apart += e.wait > e.start + 1;
  }
  CHECK(scattered > 10);
  CHECK(apart > scattered / 2);
}

TEST_CASE("iterations fetch ahead in memory that others need later", "[schedule][fast]") {
  nn::GptOptions o = gpt_of(6);
  o.scan = true;
  Graph g;
  const Minimized step = minimize(nn::gpt(g, o).loss, constant(g, 0.01), adam());
  const auto lowered = [&](bool overlap) {
    LowerOptions options{Mesh::parse("a:2"),
                         Layout::parse("batch:a;@params ff,heads:a"),
                         {{"train", {step.loss}, true}},
                         composite_kernels(),
                         [](const Step& s) { return workspace_bytes(s, 1); },
                         {}};
    options.bucket_bytes = 0;
    options.overlap = overlap;
    return lower(g, options);
  };
  const Program at_once = lowered(false), program = lowered(true);
  const auto& steps = program.functions[program.function("train")].steps;
  const auto forward =
      std::find_if(steps.begin(), steps.end(), [](const Step& s) { return !s.body.empty(); });
  REQUIRE(forward != steps.end());
  // Every gather of the forward iteration runs beside something, the first ones since the iteration
  // before.
  const Function& iteration = forward->body[0];
  CHECK(iteration.early > 0);
  int gathers = 0;
  for (size_t s = 0; s < iteration.steps.size(); ++s) {
    if (!is_collective(iteration.steps[s], CollectiveKind::all_gather)) continue;
    ++gathers;
    CHECK((static_cast<int>(s) < iteration.early || iteration.steps[s + 1].kind != StepKind::wait));
  }
  CHECK(gathers >= 4);
  CHECK(program.transient_bytes <= at_once.transient_bytes + at_once.transient_bytes / 5);
}

TEST_CASE("an all_reduce whose operand dies works in place", "[schedule][fast]") {
  Graph g;
  const Dim a("a", 4), b("b", 6);
  Tensor x = g.input("x", {a, b}, DType::float32);
  Tensor y = reduce_sum(x, "a");
  const LowerOptions options{
      Mesh::parse("p:2"), Layout::parse("a:p"), {{"f", {exp(y)}, false}}, {}, {}, {}};
  const Program program = lower(g, options);
  int reduced = 0;
  for (const Step& step : program.functions[0].steps) {
    if (step.kind != StepKind::collective) continue;
    ++reduced;
    CHECK(step.in[0].buffer == step.out[0].buffer);
  }
  CHECK(reduced == 1);
}

TEST_CASE("explain names every member of a bucket", "[schedule][fast]") {
  Training t;
  CompileOptions options;
  options.mesh = Mesh::parse("a:2;b:2");
  options.layout = Layout::parse(kLayouts[0]);
  options.functions = t.functions;
  const Explanation e = explain(t.graph, options);
  const auto single = buckets_of(t.lowered(kLayouts[0], 0, false));
  for (const FunctionReport& f : e.functions) {
    if (f.name != "train") continue;
    CHECK(f.collectives.size() == single.size());
    for (const CollectiveReport& c : f.collectives) {
      CHECK(c.bytes > 0);
      CHECK_FALSE(c.tensor.empty());
      CHECK_FALSE(c.source.empty());
    }
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
