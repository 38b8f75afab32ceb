// Predicted times: collectives by hand, where groups lie, and the two kinds of lanes.
#include "compile/kernel_info.h"
#include "cost/function_time.h"
#include "cost/work.h"
#include "lower/lower.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "tessera/nn.h"
#include "tessera/optim.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// 4 devices a node; a step takes 1 s, a product 1 s per 2 m n k.
Machine toy() {
  Machine m;
  m.name = "toy";
  m.launch = 0;
  m.memory_rates = {{0, 1}};
  m.matmuls = {{"float32", 1, 1, 1, 1, 0, 0, 0, 0, 1}};
  m.links = {{"node", 4, 0.5, 100, 2}, {"network", 0, 3, 10, 5}};
  return m;
}

View bytes_of(int64_t bytes) { return {0, DType::uint8, {bytes}, {1}, 0, {}}; }

Step compute(int64_t seconds) {
  Step step;
  step.kernel = KernelKind::fill;
  step.out = {bytes_of(seconds)};
  return step;
}

Step start(int number, int64_t bytes, std::vector<int> axes) {
  Step step;
  step.kind = StepKind::collective;
  step.collective = CollectiveKind::exchange;
  step.number = number;
  step.bytes = bytes;
  step.axes = std::move(axes);
  return step;
}

Step wait(int number) {
  Step step;
  step.kind = StepKind::wait;
  step.number = number;
  return step;
}

/// An exchange over axis 0 (network) of 100 bytes takes 5 + 3 + 10 = 18 s; over axis 1 (node) of
/// 150 bytes 2 + 0.5 + 1.5 = 4 s.
const Mesh kMesh = Mesh::parse("a:2;b:4");

FunctionTime simulate(const Machine& machine, std::vector<Step> steps, bool spans = false) {
  Function f;
  f.steps = std::move(steps);
  const Costs costs(machine, kMesh);
  return time_of(f, costs, spans);
}

TEST_CASE("a view stores one element along a dim of stride 0", "[cost]") {
  View view;
  view.sizes = {4, 8, 2};
  view.strides = {2, 0, 1};
  CHECK(elements_stored(view) == 8);
}

TEST_CASE("collectives cost what their formulas say", "[cost]") {
  const std::vector<LinkHop> node = {{4, 0.5, 100}}, both = {{4, 0.5, 100}, {2, 3, 10}};
  const auto seconds = [](CollectiveKind kind, Algorithm algorithm, double bytes,
                          const std::vector<LinkHop>& hops) {
    return collective_seconds(kind, algorithm, bytes, hops);
  };
  using enum CollectiveKind;
  CHECK(seconds(all_reduce, Algorithm::ring, 800, node) == Approx(2 * (3 * 0.5 + 600 / 100.0)));
  CHECK(seconds(all_gather, Algorithm::ring, 800, node) == Approx(3 * 0.5 + 600 / 100.0));
  // 7 steps, one of them between the nodes, whose links all four share: 40 bytes/s.
  CHECK(seconds(reduce_scatter, Algorithm::ring, 800, both) == Approx(6 * 0.5 + 3 + 700 / 40.0));
  CHECK(seconds(all_reduce, Algorithm::tree, 800, both) ==
        Approx(2 * (2 * 0.5 + 3 + 800 / (0.92 * 40))));
  CHECK(seconds(all_reduce, Algorithm::hierarchical, 800, both) ==
        Approx(2 * (1.5 + 6) + 2 * (3 + 100 / 10.0)));
  CHECK(seconds(all_gather, Algorithm::hierarchical, 800, both) == Approx(1.5 + 6 + 3 + 10));
  // Each rank sends 4 of its 8 parts out of the node by its own link.
  CHECK(seconds(all_to_all, Algorithm::ring, 800, both) == Approx(6 * 0.5 + 3 + 400 / 10.0));
  CHECK(seconds(all_to_all, Algorithm::tree, 800, node) == Approx(1 + 400 * 2 / 100.0));
  CHECK(seconds(broadcast, Algorithm::ring, 800, node) == Approx(1.5 + 8));
  CHECK(seconds(exchange, Algorithm::ring, 800, both) == Approx(3 + 80));
  CHECK(seconds(all_reduce, Algorithm::ring, 800, {}) == 0);
  CHECK(fastest(all_reduce, 1, node).algorithm == Algorithm::tree);
  CHECK(fastest(all_reduce, 1e6, node).algorithm == Algorithm::ring);
  CHECK(fastest(all_reduce, 1e6, both).algorithm == Algorithm::hierarchical);
  for (CollectiveKind kind : {all_reduce, all_gather, reduce_scatter, all_to_all, broadcast}) {
    for (double bytes : {1.0, 1e3, 1e6}) {
      for (Algorithm a : {Algorithm::ring, Algorithm::tree, Algorithm::hierarchical})
        CHECK(fastest(kind, bytes, both).seconds <= seconds(kind, a, bytes, both));
    }
  }
}

TEST_CASE("groups lie where their ranks lie", "[cost]") {
  const Machine m = toy();
  const auto ranks = [&](const std::string& mesh, const std::vector<int>& axes) {
    std::vector<int64_t> ranks;
    const Costs costs(m, Mesh::parse(mesh));
    for (const LinkHop& hop : costs.hops(axes)) ranks.push_back(hop.ranks);
    return std::make_pair(ranks, costs.link(axes));
  };
  using R = std::pair<std::vector<int64_t>, std::string>;
  CHECK(ranks("a:2;b:4", {1}) == R({4}, "node"));
  CHECK(ranks("a:2;b:4", {0}) == R({2}, "network"));
  CHECK(ranks("a:2;b:4", {0, 1}) == R({4, 2}, "network"));
  CHECK(ranks("a:8;b:2", {0}) == R({2, 4}, "network"));
  CHECK(ranks("a:2;b:2", {0, 1}) == R({4}, "node"));
  CHECK(ranks("a:2;b:4@network", {1}) == R({4}, "network"));
  CHECK(ranks("a:16;b:2", {1}) == R({2}, "node"));
  expect_usage({"has no link class 'nvlink'"}, [&] { Costs(m, Mesh::parse("a:2@nvlink")); });
  Machine closed = m;
  closed.links.pop_back();
  expect_usage({"joins at most 4 devices (link 'node')", "8 ranks"}, [&] { Costs(closed, kMesh); });
  closed.links.clear();
  expect_usage({"machine 'toy' has no [[link]]", "8 ranks"}, [&] { Costs(closed, kMesh); });
  Costs(closed, Mesh::parse("a:1"));
}

TEST_CASE("measured collectives prevail and are interpolated", "[cost]") {
  Machine m = toy();
  m.collectives = {{"all_reduce", "node", 4, 0, 0, {{0, 1}, {150, 4}, {300, 5}}}};
  const Costs costs(m, kMesh);
  CHECK(costs.collective(CollectiveKind::all_reduce, 100, {1}) == Approx(4));
  CHECK(costs.collective(CollectiveKind::all_reduce, 50, {1}) == Approx(1 + 3 * 76 / 150.0));
  CHECK(costs.collective(CollectiveKind::all_reduce, 400, {1}) == Approx(7));
  CHECK(costs.collective(CollectiveKind::all_reduce, 400, {0}) == Approx(5 + 2 * (3 + 200 / 10.0)));
}

TEST_CASE("the lanes overlap as the waits let them", "[cost]") {
  Machine m = toy();
  FunctionTime t = simulate(m, {compute(10), start(0, 100, {0}), wait(0), compute(1)});
  CHECK(t.seconds == Approx(10 + 18 + 1));
  CHECK(t.exposed == Approx(18));

  t = simulate(m, {start(0, 100, {0}), compute(10), wait(0), compute(1)});
  CHECK(t.seconds == Approx(18 + 1));
  CHECK(t.compute == Approx(11));
  REQUIRE(t.collectives.size() == 1);
  CHECK(t.collectives[0].exposed == Approx(8));
  CHECK(t.collectives[0].hidden() == Approx(10));

  // Two axes have a lane each, one axis has one.
  t = simulate(m, {start(0, 100, {0}), start(1, 150, {1}), wait(1), wait(0)});
  CHECK(t.seconds == Approx(18));
  REQUIRE(t.by_axes.size() == 2);
  CHECK(t.by_axes[1].exposed == Approx(4));
  t = simulate(m, {start(0, 100, {0}), start(1, 100, {0}), wait(1), wait(0)});
  CHECK(t.seconds == Approx(36));
  CHECK(t.by_axes[0].exposed == Approx(36));

  // Nobody waits: the function ends when all is done.
  CHECK(simulate(m, {start(0, 100, {0}), compute(1)}).seconds == Approx(18));

  // Neighbours of one number start once.
  t = simulate(m, {start(0, 100, {0}), start(0, 100, {0}), wait(0)});
  CHECK(t.collectives.size() == 1);
  CHECK(t.seconds == Approx(5 + 3 + 20));
}

TEST_CASE("lanes that are busy at once slow each other down", "[cost]") {
  Machine m = toy();
  m.overlap = {true, 2, 1.5};
  FunctionTime t = simulate(m, {start(0, 150, {1}), compute(10), wait(0)}, true);
  // 4 s of transfer take 6 s, in which 3 s of compute are done; 7 are left.
  CHECK(t.seconds == Approx(6 + 7));
  CHECK(t.slowed == Approx(3));
  CHECK(t.exposed == Approx(0));
  REQUIRE(t.spans.size() == 2);
  CHECK(t.spans[0].lane == 1);
  CHECK(t.spans[0].seconds == Approx(6));
  CHECK(t.spans[1].seconds == Approx(13));
  m.overlap.possible = false;
  t = simulate(m, {start(0, 150, {1}), compute(10), wait(0)});
  CHECK(t.seconds == Approx(14));
  CHECK(t.exposed == Approx(4));
  CHECK(t.seconds == Approx(t.compute + t.slowed + t.exposed));
}

TEST_CASE("who posts an exchange's messages holds up computing at least so long", "[cost]") {
  Machine m = toy();
  m.overlap.posting = 2;
  FunctionTime t = simulate(m, {start(0, 150, {1}), compute(10), wait(0)});
  CHECK(t.exposed == Approx(2));  // hidden otherwise
  CHECK(t.seconds == Approx(12));
  t = simulate(m, {start(0, 150, {1}), compute(3), wait(0)});
  CHECK(t.exposed == Approx(2));  // the second that is left is part of it
  t = simulate(m, {start(0, 150, {1}), wait(0)});
  CHECK(t.exposed == Approx(4));
  m.overlap.posting = 9;
  t = simulate(m, {start(0, 150, {1}), compute(10), wait(0)});
  CHECK(t.exposed == Approx(4));  // it takes no longer itself
}

TEST_CASE("a loop is simulated with all its iterations", "[cost]") {
  const Machine m = toy();
  Step loop;
  loop.kernel = KernelKind::loop;
  loop.loop.iterations = 3;
  Function body;
  body.steps = {start(1, 150, {1}), compute(1), wait(1)};
  loop.body = {body};
  const FunctionTime t = simulate(m, {compute(2), loop, start(2, 100, {0}), wait(2)}, true);
  CHECK(t.seconds == Approx(2 + 3 * 4 + 18));
  REQUIRE(t.collectives.size() == 4);
  CHECK(t.collectives[2].step == 2);
  CHECK(t.collectives[2].exposed == Approx(3));
  CHECK(t.collectives[3].step == 5);
  CHECK(t.spans.back().step == 5);
}

TEST_CASE("a lowered GPT is priced on every profile", "[cost]") {
  Graph graph;
  nn::GptOptions options;
  options.layers = 2;
  options.d_model = 1024;
  options.heads = 16;
  options.ff = 4096;
  options.length = 1024;
  options.vocab = 512;
  options.batch = 32;
  options.dtype = DType::bfloat16;
  const nn::Model model = nn::gpt(graph, options);
  const Minimized step = minimize(model.loss, constant(graph, 0.01), adam());
  LowerOptions lowering{Mesh::parse("data:4;model:8"),
                        Layout::parse("batch:data;heads,ff,vocab:model"),
                        {{"train", {model.loss}, true}},
                        composite_kernels(),
                        {},
                        {}};
  const Program program = lower(graph, lowering);
  const Function& train = program.functions[program.function("train")];
  int64_t products = 0;
  for (const Step& s : train.steps) {
    if (s.kernel != KernelKind::matmul) continue;
    const MatmulSizes p = matmul_sizes(s);
    CHECK(2 * p.batch * p.m * p.n * p.k == s.flops);
    ++products;
  }
  CHECK(products == 2 * (4 + 2) * 3 + 3);
  for (const std::string& name : Machine::names()) {
    const Machine machine = Machine::load(name);
    const FunctionTime t = time_of(train, Costs(machine, lowering.mesh));
    INFO(name << " " << t.seconds);
    CHECK(t.seconds == Approx(t.compute + t.slowed + t.exposed));
    CHECK(t.seconds > 1e-3);
    CHECK(t.seconds < 0.1);
    double exposed = 0;
    for (const AxisTime& a : t.by_axes) exposed += a.exposed;
    CHECK(exposed == Approx(t.exposed));
    for (const CollectiveTime& c : t.collectives) CHECK(c.exposed <= c.seconds * 1.2 + 1e-12);
  }
}

TEST_CASE("attention's work is that of the pairs that causal order and a window leave", "[fast]") {
  const auto work = [](bool causal, int64_t window) {
    Step step;
    step.kernel = KernelKind::attention;
    AttentionSpec& spec = step.spec.emplace<AttentionSpec>();
    spec.memory_length = 1;
    spec.key_dim = 2;
    spec.causal = causal;
    spec.window = window;
    const View query = {0, DType::float32, {1000, 1, 8}, {8, 0, 1}, 0, {}},
               keys = {0, DType::float32, {1, 1000, 8}, {0, 8, 1}, 0, {}};
    step.in = {query, keys, keys};
    step.out = {query};
    step.flops = 32'000'000;
    return flops_done(step, Mesh());
  };
  CHECK(work(false, 0) == 32e6);
  CHECK(work(true, 0) == 16e6);
  CHECK(work(true, 50) == Approx(1.6e6));
  CHECK(work(false, 50) == Approx(99 * 32e3));
  CHECK(work(true, 900) == 16e6);
  Step other;
  other.kernel = KernelKind::fill;
  other.flops = 5;
  CHECK(flops_done(other, Mesh()) == 5);
}

TEST_CASE("rows that are added somewhere are counted once, wherever they may go", "[fast]") {
  Graph g;
  const Dim tokens("tokens", 6), rows("rows", 100), width("width", 4);
  const Tensor indices = g.input("indices", {tokens}, DType::int32),
               updates = g.input("updates", {tokens, width}, DType::float32);
  const Tensor added = scatter_add(indices, updates, {rows, width}, "rows").named("added"),
               sum = reduce_max(updates, {"tokens"}).named("sum");
  LowerOptions lowering{Mesh::parse("a:2"),
                        Layout::parse("width:a"),
                        {{"run", {added, sum}, false}},
                        composite_kernels(),
                        {},
                        {}};
  const Program program = lower(g, lowering);
  std::map<KernelKind, int64_t> flops;
  for (const Step& s : program.functions[program.function("run")].steps) flops[s.kernel] += s.flops;
  CHECK(flops[KernelKind::scatter_add] == 6 * 4 / 2);
  CHECK(flops[KernelKind::reduce] == 6 * 4 / 2);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
