// Communication arranged for a machine: how much goes into a bucket, and products that are cut
// with their collective.
#include <cmath>

#include "compile/lowering.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "support/gpt_run.h"
#include "tessera/explain.h"

namespace tessera::test {

namespace TESSERA_FILE {

Machine with_links(double latency, double bandwidth) {
  Machine machine = Machine::load("h100");
  for (LinkTier& link : machine.links) {
    link.latency = latency;
    link.bandwidth = bandwidth;
    link.start = 0;
  }
  machine.overlap = {true, 1, 1};
  return machine;
}

struct Setting {
  std::string mesh = "model:4", layout = "heads,ff,vocab:model";
  int chunks = 0;
  int64_t width = 1024, batch = 16;
  bool scan = false;
  DType dtype = DType::float32;
};

CompileOptions options_for(Graph& graph, const Setting& s, const Machine* machine) {
  nn::GptOptions o;
  o.layers = 4;
  o.d_model = s.width;
  o.heads = 8;
  o.ff = 4 * s.width;
  o.length = 512;
  o.vocab = 512;
  o.batch = s.batch;
  o.dtype = s.dtype;
  o.scan = s.scan;
  const nn::Model model = nn::gpt(graph, o);
  const Minimized step = minimize(model.loss, constant(graph, 0.01), adam(), {.clip = 1});
  CompileOptions options{Mesh::parse(s.mesh),
                         Layout::parse(s.layout),
                         {{"train", {model.loss, step.gradient_norm}, true}}};
  options.chunks = s.chunks;
  if (machine != nullptr) options.machine = std::make_shared<const Machine>(*machine);
  return options;
}

/// With times on `machine`, whether the schedule is made for it or not.
Explanation explained(const Setting& s, const Machine& machine, bool arranged = true) {
  Graph graph;
  const CompileOptions options = options_for(graph, s, arranged ? &machine : nullptr);
  return explain(graph, options, {}, &machine);
}

const BucketReport& sums(const Explanation& e) {
  for (const BucketReport& x : e.functions.back().buckets) {
    if (x.kind == "all_reduce") return x;
  }
  throw std::runtime_error("no sums");
}

int parts_of(const Explanation& e) {
  int parts = 0;
  for (const CollectiveReport& c : e.functions.back().collectives)
    parts += c.rule.find("; part ") != std::string::npos;
  return parts;
}

/// Products, sums, gathers and waits of "train" in order.
std::string order(const std::string& program) {
  std::string text;
  for (size_t line = program.find("function train"); line < program.size();
       line = program.find('\n', line) + 1) {
    const std::string step = program.substr(line, program.find('\n', line) - line);
    if (step.find("= matmul(") != std::string::npos) text += "p";
    if (step.find("= all_reduce ") != std::string::npos) text += "s";
    if (step.find("= all_gather ") != std::string::npos) text += "g";
    if (step.find("  wait ") != std::string::npos) text += "w";
    if (program.find('\n', line) == std::string::npos) break;
  }
  return text;
}

TEST_CASE("a larger start makes larger buckets", "[overlap]") {
  const Setting s{"data:8", "batch:data"};
  int before = 1 << 30;
  for (const double latency : {1e-7, 1e-6, 1e-5, 1e-4}) {
    const Machine machine = with_links(latency, 1e11);
    const Explanation e = explained(s, machine);
    const BucketReport& x = sums(e);
    INFO(latency << ": " << x.buckets << " buckets");
    CHECK(x.buckets < before);
    before = x.buckets;
    // Starts take the share that the last one has of all, as far as single tensors can be parted.
    const double start = x.started / x.buckets, transfer = x.seconds - x.started;
    const double share = std::sqrt(start / transfer);
    CHECK(x.started < 1.2 * share * transfer);
    const int64_t all = e.functions.back().bytes, tensor = 2 * 1024 * 4096 * 4;
    CHECK(static_cast<double>(x.most) <
          1.1 * std::max(share * static_cast<double>(all), static_cast<double>(tensor)));
    CHECK(to_string(e).find("all_reduce over data: " + std::to_string(x.buckets) +
                            " buckets, the largest sends ") != std::string::npos);
  }
}

TEST_CASE("buckets for a machine expose less than those for any", "[overlap]") {
  Setting s{"data:8", "batch:data"};
  s.batch = 64;
  for (const double latency : {1e-7, 1e-4}) {
    const Machine machine = with_links(latency, 1e11);
    CHECK(explained(s, machine).functions.back().time.exposed <
          0.7 * explained(s, machine, false).functions.back().time.exposed);
  }
  const Machine machine = with_links(1e-7, 1e11);
  // The Program, which ranks compare, is another one.
  CHECK(explained(s, machine).program_hash != explained(s, machine, false).program_hash);
  Machine alone = machine;  // transfers take the cores that compute: nothing can be arranged
  alone.overlap.possible = false;
  CHECK(explained(s, alone).program_hash == explained(s, alone, false).program_hash);
}

TEST_CASE("a machine that cannot price the mesh is an error", "[overlap]") {
  Machine machine = with_links(1e-6, 1e10);
  machine.links.clear();
  Graph graph;
  const CompileOptions options = options_for(graph, {}, &machine);
  expect_error(ErrorKind::usage, {"has no [[link]]", "4 ranks"}, [&] { explain(graph, options); });
}

TEST_CASE("a product is cut with the sum of its result where that pays", "[overlap]") {
  const Machine machine = with_links(1e-7, 5e11);
  Setting s;
  s.width = 2048;
  s.dtype = DType::bfloat16;
  for (const bool scan : {false, true}) {
    INFO("scan " << scan);
    s.scan = scan;
    s.chunks = 0;
    const Explanation with = explained(s, machine);
    s.chunks = 1;
    const Explanation without = explained(s, machine);
    CHECK(parts_of(with) > 8);
    CHECK(parts_of(without) == 0);
    const FunctionReport &a = with.functions.back(), &b = without.functions.back();
    CHECK(a.bytes == b.bytes);
    CHECK(a.flops == b.flops);
    CHECK(a.time.exposed < 0.8 * b.time.exposed);
    CHECK(a.time.seconds < 0.98 * b.time.seconds);
    CHECK(static_cast<double>(with.memory.transient) <
          1.05 * static_cast<double>(without.memory.transient));
  }
  // Where a start takes longer than what it hides, and where no machine is known, nothing is cut.
  s.chunks = 0;
  CHECK(parts_of(explained(s, with_links(1e-3, 1e11))) == 0);
  CHECK(parts_of(explained(s, machine, false)) == 0);
}

TEST_CASE("parts are computed while those before are under way", "[overlap]") {
  Graph g;
  const Dim batch("batch", 8), length("length", 4), in("in", 6), hidden("hidden", 64),
      out("out", 5);
  const Tensor x = g.input("x", {batch, length, in}, DType::float64);
  const auto weight = [&](const char* name, const Shape& shape) {
    return g.parameter(name, shape, nn::normal(1), DType::float64);
  };
  const Tensor a = exp(einsum({x, weight("w1", {in, hidden})}, {batch, length, hidden}));
  const Tensor y =
      einsum({a, weight("w2", {hidden, out})}, {batch, length, out}) + weight("bias", {out});
  const Tensor z = exp(y).named("z");
  CompileOptions options{
      Mesh::parse("model:2"), Layout::parse("hidden:model"), {{"train", {z}, false}}};
  Array whole[2];
  for (const int chunks : {1, 4}) {
    options.chunks = chunks;
    Cluster ranks = Cluster::threads(2);
    Session session(g, ranks, options);
    // Products of w1 and w2; the pointwise step that adds the bias is cut with the second.
    CHECK(order(session.program().text()) == (chunks == 1 ? "ppsw" : "ppspspspswwww"));
    Array values(DType::float64, {"batch", "length", "in"}, {8, 4, 6});
    for (int64_t i = 0; i < values.elements(); ++i)
      values.data<double>()[i] = std::sin(static_cast<double>(i));
    session.feed("x", values);
    session.run("train");
    whole[chunks > 1] = session.fetch("z");
  }
  for (int64_t i = 0; i < whole[0].elements(); ++i)
    CHECK(whole[0].data<double>()[i] == Approx(whole[1].data<double>()[i]).epsilon(1e-14));
}

TEST_CASE("a gathered operand is read part by part", "[overlap]") {
  Graph g;
  const Dim batch("batch", 8), length("length", 4), in("in", 6), hidden("hidden", 8);
  const Tensor x = g.parameter("x", {batch, length, in}, nn::normal(1), DType::float64);
  const Tensor w = g.parameter("w", {in, hidden}, nn::normal(1), DType::float64);
  const Tensor a = einsum({x, w}, {batch, length, hidden}).named("a");
  CompileOptions options{Mesh::parse("model:2"),
                         Layout::parse("hidden:model;@params/x/ length:model"),
                         {{"train", {a}, false}}};
  Array whole[2];
  for (const int chunks : {1, 2}) {
    options.chunks = chunks;
    Cluster ranks = Cluster::threads(2);
    Session session(g, ranks, options);
    CHECK(order(session.program().text()) == (chunks == 1 ? "gwp" : "ggwpwp"));
    session.run("train");
    whole[chunks > 1] = session.fetch("a");
  }
  for (int64_t i = 0; i < whole[0].elements(); ++i)
    CHECK(whole[0].data<double>()[i] == Approx(whole[1].data<double>()[i]).epsilon(1e-14));
}

TEST_CASE("cut products train alike, dropout and loops included", "[overlap]") {
  const char* places[][2] = {{"model:2", "heads,ff,vocab:model"},
                             {"data:2;model:2", "batch:data;heads,ff:model;@params d_model:data"},
                             {"model:2", "heads,ff:model;@/*norm*/ length:model"}};
  for (const auto& [mesh, layout] : places) {
    for (const bool scan : {false, true}) {
      INFO(mesh << " " << layout << " scan " << scan);
      std::vector<double> losses[2];
      std::string steps[2];
      for (const int chunks : {1, 2}) {
        Graph g;
        nn::GptOptions size = small_gpt(DType::float64);
        size.heads = 2;
        size.batch = 8;
        size.dropout = 0.2;
        size.scan = scan;
        const nn::Model model = nn::gpt(g, size);
        minimize(model.loss, constant(g, 0.01, DType::float64), adam(), {.clip = 1});
        CompileOptions options{
            Mesh::parse(mesh), Layout::parse(layout), {{"train", {model.loss}, true}}};
        options.chunks = chunks;
        Cluster ranks = Cluster::threads(options.mesh.size());
        Session session(g, ranks, options);
        steps[chunks - 1] = order(session.program().text());
        for (int step = 0; step < 3; ++step) {
          feed_tokens(session, model, step);
          session.run("train");
          losses[chunks - 1].push_back(session.fetch_scalar(model.loss.name()));
        }
      }
      CHECK(steps[1].size() > steps[0].size());
      for (size_t s = 0; s < 3; ++s) CHECK(losses[0][s] == Approx(losses[1][s]).epsilon(1e-12));
    }
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
