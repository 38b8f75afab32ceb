// What explain says that a step sends and holds, against what a running one does send and hold: by
// thread ranks whose every message is counted, to the byte, for every legal layout.
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>

#include "collectives/collectives_cases.h"
#include "support/catch.h"
#include "support/counted_world.h"
#include "tessera/explain.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

struct Step {
  Graph graph;
  Tensor loss;
};
using Build = std::function<void(Step&)>;

nn::GptOptions options_of_gpt(int64_t layers) {
  nn::GptOptions o;
  o.layers = layers;
  o.d_model = 8;
  o.heads = 4;
  o.ff = 16;
  o.length = 8;
  o.vocab = 12;
  o.batch = 8;
  return o;
}

void gpt(Step& step) {
  step.loss = nn::gpt(step.graph, options_of_gpt(1)).loss;
  MinimizeOptions options;
  options.clip = 1;
  minimize(step.loss, constant(step.graph, 0.01), adam(), options);
}

/// In parts of the batch, in bfloat16, its blocks a loop: collectives run many times a step. As
/// many blocks as the longest axis has ranks: predicted is what the fullest stage of layers sends.
void gpt_in_loops(Step& step) {
  nn::GptOptions o = options_of_gpt(4);
  o.scan = true;
  o.batch /= 2;
  o.dtype = DType::bfloat16;
  step.loss = minimize_in_microbatches(
                  step.graph, "batch", 2, [&] { return nn::gpt(step.graph, o).loss; },
                  constant(step.graph, 0.01), adam())
                  .loss;
}

/// Images of a size that few axes divide: borders go to neighbours, and padding with them.
void cnn(Step& step) {
  nn::CnnOptions o;
  o.batch = 4;
  o.rows = o.cols = 10;
  o.channels1 = 4;
  o.channels2 = 6;
  o.hidden = 8;
  step.loss = nn::cnn(step.graph, o).loss;
  minimize(step.loss, constant(step.graph, 0.01), sgd());
}

void experts(Step& step, bool dropless) {
  const Dim batch("batch", 8), length("length", 4), model("d_model", 8);
  Tensor x = step.graph.parameter("x", {batch, length, model}, nn::normal(1));
  nn::MoeOptions o;
  o.experts = Dim("experts", 4);
  o.hidden = Dim("ff", 8);
  o.dropless = dropless;
  const nn::Moe mixed = nn::moe(x, "moe", "d_model", o);
  step.loss = (mean_all(square(mixed.y - 1.0)) + mixed.loss).named("loss");
  minimize(step.loss, constant(step.graph, 0.01), adam());
}

void dropless_experts(Step& step) { experts(step, true); }
void experts_with_capacity(Step& step) { experts(step, false); }

void feed(Session& session, const Graph& graph) {
  for (const Node& node : graph.nodes()) {
    if (std::string(node.op->name) != "input") continue;
    const Value& input = graph.value(node.out[0]);
    std::vector<int64_t> sizes;
    for (const Dim& d : input.shape) sizes.push_back(d.size);
    Array whole(input.dtype, input.shape.names(), sizes);
    for (int64_t i = 0; i < whole.elements(); ++i) {
      if (input.dtype == DType::int32) {
        whole.data<int32_t>()[i] = static_cast<int32_t>(i * i % 7);
      } else {
        whole.data<float>()[i] = static_cast<float>(i * i % 11) / 11;
      }
    }
    session.feed(input.name, whole);
  }
}

/// Bytes that a rank sends, by kind, axes and where it comes from, and how often.
struct Row {
  int64_t bytes = 0, times = 0;
  bool operator==(const Row&) const = default;
};
using Rows = std::map<std::string, Row>;

/// The rows that are not in both, as text.
std::string difference(const Rows& sent, const Rows& want) {
  std::string text;
  const auto add = [&](const char* what, const Rows& rows, const Rows& others) {
    for (const auto& [name, row] : rows) {
      if (const auto it = others.find(name); it == others.end() || !(it->second == row))
        text += fmt::format("{}: {} bytes in {} times by {}\n", what, row.bytes, row.times, name);
    }
  };
  add("sent", sent, want);
  add("predicted", want, sent);
  return text;
}

Rows predicted(const Explanation& e) {
  Rows rows;
  for (const FunctionReport& f : e.functions) {
    if (f.name != "train") continue;
    for (const CollectiveReport& c : f.collectives) {
      Row& row = rows[c.kind + " over " + c.axes + " of " + c.tensor + " (" + c.source + ")"];
      row.bytes += c.bytes;
      row.times += c.times;
    }
  }
  return rows;
}

/// The axes along which the ranks of a group differ.
std::string axes_of(const std::vector<int>& group, const Mesh& mesh) {
  std::string text;
  int below = mesh.size();
  for (const MeshAxis& axis : mesh.axes()) {
    below /= axis.size;
    std::set<int> coordinates;
    for (int rank : group) coordinates.insert(rank / below % axis.size);
    if (coordinates.size() > 1) text += (text.empty() ? "" : "+") + axis.name;
  }
  return text;
}

Rows counted(const CountedWorld& world, const Mesh& mesh) {
  Rows rows;
  for (const auto& [call, counted] : world.counted()) {
    if (call.kind == CollectiveKind::barrier) continue;
    REQUIRE(counted.runs > 0);
    int64_t bytes = 0;
    // A rank's mean, rounded up, of each run, which are all alike.
    for (const int64_t sent : counted.bytes) {
      REQUIRE(sent % counted.runs == 0);
      bytes += (sent / counted.runs + mesh.size() - 1) / mesh.size();
    }
    Row& row = rows[std::string(to_string(call.kind)) + " over " + axes_of(counted.group, mesh) +
                    " of " + call.text];
    row.bytes += bytes * counted.runs;
    row.times += counted.runs;
  }
  return rows;
}

constexpr unsigned char kUntouched = 0xa5;

/// The bytes up to the last that was written, in whole lines of 64.
int64_t reached(const CountedWorld::Memory& memory) {
  int64_t end = memory.bytes;
  while (end > 0 && memory.data[end - 1] == kUntouched) --end;
  return (end + 63) / 64 * 64;
}

struct Model {
  Build build;
  /// The last bytes of its memory are written: none are of a workspace that is planned for the
  /// worst case, nor of an iteration that a rank has no part in.
  bool fills_memory = false;
};

struct Tally {
  int layouts = 0, collectives = 0;
};

/// A model and what a step of it makes when nothing is split.
struct Whole {
  explicit Whole(const Model& model) : fills_memory(model.fills_memory) {
    model.build(step);
    Cluster one = Cluster::threads(1);
    Session session(step.graph, one, {Mesh::parse("a:1"), Layout(), functions()});
    feed(session, step.graph);
    session.run("train");
    loss = session.fetch_scalar(step.loss.name());
  }
  std::vector<FunctionSpec> functions() const { return {{"train", {step.loss}, true}}; }

  Step step;
  double loss = 0;
  bool fills_memory;
};

/// Runs a step of one layout and compares.
void check_layout(const Whole& whole, const Mesh& mesh, const Layout& layout, Tally& tally) {
  INFO("layout '" << layout.to_string() << "' on " << mesh.to_string());
  CompileOptions options{mesh, layout, whole.functions()};
  options.threads_per_rank = 1;
  const Explanation e = explain(whole.step.graph, options);
  CountedWorld world(mesh.size());
  Cluster ranks = Cluster::adopt(world.communicators());
  Session session(whole.step.graph, ranks, options);
  feed(session, whole.step.graph);
  const int64_t persistent = e.memory.params + e.memory.state + e.memory.inputs;
  for (int r = 0; r < mesh.size(); ++r) {
    const auto memory = world.memory(r);
    REQUIRE(memory.size() == 2);
    CHECK(memory[0].bytes == persistent);
    CHECK(memory[1].bytes == e.memory.transient);
    std::memset(memory[1].data, kUntouched, static_cast<size_t>(memory[1].bytes));
  }
  world.clear();
  session.run("train");
  const Rows sent = counted(world, mesh);
  CHECK(difference(sent, predicted(e)) == "");
  int64_t highest = 0;
  for (int r = 0; r < mesh.size(); ++r) highest = std::max(highest, reached(world.memory(r)[1]));
  CHECK(highest <= e.memory.transient);
  if (whole.fills_memory) CHECK(highest == e.memory.transient);
  CHECK(session.fetch_scalar(whole.step.loss.name()) == Approx(whole.loss).epsilon(1e-2));
  ++tally.layouts;
  tally.collectives += static_cast<int>(sent.size());
}

/// Every `stride`-th legal layout of each mesh; all of them if TESSERA_LONG is set.
Tally check_model(const Model& model, const std::vector<std::string>& meshes, size_t stride = 1) {
  const Whole whole(model);
  if (std::getenv("TESSERA_LONG") != nullptr) stride = 1;
  Tally tally;
  for (const std::string& text : meshes) {
    const Mesh mesh = Mesh::parse(text);
    const std::vector<Layout> layouts = legal_layouts(whole.step.graph, mesh, whole.functions());
    for (size_t i = 0; i < layouts.size(); i += stride)
      check_layout(whole, mesh, layouts[i], tally);
  }
  return tally;
}

const Model kGpt{gpt, true}, kGptInLoops{gpt_in_loops, false}, kCnn{cnn, false},
    kExperts{experts_with_capacity, true}, kDropless{dropless_experts, false};

TEST_CASE("ranks that count their messages are ranks like any others", "[counted]") {
  for (const int ranks : {1, 2, 3, 4}) {
    INFO(ranks << " ranks");
    CountedWorld world(ranks);
    Cluster cluster = Cluster::adopt(world.communicators());
    std::vector<int> failures(static_cast<size_t>(ranks));
    cluster.run([&](int r, Communicator& communicator) {
      failures[static_cast<size_t>(r)] = collectives_test::collectives_selftest(communicator);
    });
    CHECK(failures == std::vector<int>(static_cast<size_t>(ranks), 0));
  }
}

TEST_CASE("what is predicted is what a step sends and holds, in every legal layout", "[counted]") {
  const Tally gpt = check_model(kGpt, {"a:2", "a:3", "a:2;b:2"});
  CHECK(gpt.layouts > 50);
  CHECK(gpt.collectives > 500);
  CHECK(check_model(kExperts, {"a:2", "a:4", "a:2;b:2"}).collectives > 300);
  CHECK(check_model(kDropless, {"a:2", "a:2;b:2"}).collectives > 200);
  CHECK(check_model(kCnn, {"a:2", "a:4", "a:2;b:2"}).collectives > 300);
  CHECK(check_model(kGptInLoops, {"a:2"}).collectives > 90);
}

TEST_CASE("what is predicted is what up to 64 ranks send and hold", "[counted][slow]") {
  CHECK(check_model(kGpt, {"a:2;b:2;c:2", "a:4;b:4"}, 7).layouts > 25);
  CHECK(check_model(kGpt, {"a:4;b:4;c:4"}, 29).layouts >= 5);
  CHECK(check_model(kExperts, {"a:2;b:2;c:2", "a:4;b:4;c:4"}, 17).layouts > 8);
  CHECK(check_model(kCnn, {"a:2;b:2;c:2", "a:4;b:4;c:4"}, 29).layouts > 18);
  CHECK(check_model(kGptInLoops, {"a:2;b:2", "a:4;b:4;c:4"}, 29).layouts > 8);
}

TEST_CASE("what is predicted is what ranks send and hold under storage rules", "[counted]") {
  const Whole gpt(kGpt), loops(kGptInLoops);
  Tally tally;
  for (const char* layout :
       {"batch:a;@state d_model:a", "batch:a;@grads d_model:a", "batch:a;@params d_model:a",
        "batch:a+b;@params d_model:a", "batch:a;heads,ff,vocab:b;@params d_model:a",
        "batch:a;heads,ff,vocab:b;@/*norm*/ length:b", "length:a;@params vocab,ff:b"}) {
    check_layout(gpt, Mesh::parse("a:2;b:2"), Layout::parse(layout), tally);
    check_layout(loops, Mesh::parse("a:2;b:2"), Layout::parse(layout), tally);
  }
  check_layout(loops, Mesh::parse("a:4"), Layout::parse("layers:a;vocab:a"), tally);
  check_layout(loops, Mesh::parse("a:2;b:2"), Layout::parse("layers:a;batch:b"), tally);
  CHECK(tally.collectives > 200);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
