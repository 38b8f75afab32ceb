// Dispatch of rows in chunks of a rank's tokens: one is sent while another is multiplied.
#include <fmt/format.h>

#include <map>

#include "support/catch.h"
#include "support/counted_world.h"
#include "support/fed_experts.h"
#include "tessera/explain.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

struct Case {
  const char *mesh, *layout;
  int64_t experts, rows;
};
const Case kCases[] = {{"x:4", "batch,experts:x", 6, 4},
                       {"x:2", "batch,experts:x", 6, 4},
                       {"x:3", "length,experts:x", 6, 5},  // padded tokens
                       {"data:2;model:2", "batch,experts:data+model", 8, 4},
                       {"data:2;model:2", "batch:data;experts:data+model", 8, 4},
                       {"data:2;model:2", "batch:data;length:model;experts:data+model", 8, 4},
                       {"x:2;y:3", "batch:x+y;experts:y", 6, 4},
                       {"x:2;y:2", "batch,experts:x;ff:y", 6, 4}};

struct Run {
  std::vector<double> losses;
  std::map<std::string, Array> stored;
  int64_t bytes = 0;    ///< of all_to_alls but those of counts, by all ranks, in a step
  size_t repeated = 0;  ///< steps
  std::string program;
};

Run run(const Case& c, int parts, double share = 0.3, int steps = 2) {
  FedExperts model(c.experts, c.rows);
  CompileOptions options = model.options(c.mesh, c.layout);
  options.chunks = parts;
  CountedWorld world(options.mesh.size());
  Cluster ranks = Cluster::adopt(world.communicators());
  Session session(model.g, ranks, options);
  session.feed("x", wave(c.rows));
  Run result;
  for (int step = 0; step < steps; ++step) {
    session.feed("indices", Choices(c.experts, c.rows, 1, share, 8).array);
    world.clear();
    session.run("train");
    result.losses.push_back(session.fetch_scalar("loss"));
  }
  for (const auto& [call, counted] : world.counted()) {
    const auto others = static_cast<int64_t>(counted.group.size()) - 1;
    const bool is_counts = counted.bytes[0] == options.mesh.size() * others * 4;
    if (call.kind == CollectiveKind::all_to_all && !is_counts) result.bytes += counted.bytes[0];
  }
  for (const std::string& name : session.program().stored_names())
    result.stored.emplace(name, session.fetch(name));
  result.repeated = session.fallbacks().size();
  result.program = session.program().text();
  return result;
}

void check_equal(const Run& want, const Run& got) {
  for (size_t s = 0; s < want.losses.size(); ++s)
    CHECK(got.losses[s] == Approx(want.losses[s]).epsilon(1e-12));
  REQUIRE(want.stored.size() == got.stored.size());
  for (const auto& [name, value] : want.stored) {
    for (int64_t i = 0; i < value.elements(); ++i) {
      INFO(name << " element " << i);
      REQUIRE(got.stored.at(name).at(i) == Approx(value.at(i)).epsilon(1e-10).margin(1e-12));
    }
  }
}

/// How many all_to_alls of rows [..., d_model] "train" has, and how many of them have a grouped
/// product between their start and their wait.
struct Moves {
  int all = 0, hidden = 0;
};
Moves moves(const std::string& program) {
  Moves moves;
  std::map<std::string, bool> open;  // by number: products since the start
  for (size_t line = program.find("function train"); line < program.size();) {
    const size_t end = std::min(program.find('\n', line), program.size());
    const std::string step = program.substr(line, end - line);
    line = end + 1;
    const auto number = [&] {
      const size_t at = step.find('#');
      return step.substr(at, step.find_first_not_of("0123456789", at + 1) - at);
    };
    if (step.find("= grouped_") != std::string::npos) {
      for (auto& [name, products] : open) products = true;
    } else if (step.find("= all_to_all #") != std::string::npos) {
      if (step.find(",8]/") < step.find("= all_to_all")) open[number()] = false;
    } else if (step.find("  wait #") != std::string::npos && open.contains(number())) {
      ++moves.all;
      moves.hidden += open[number()];
      open.erase(number());
    }
  }
  return moves;
}

TEST_CASE("rows that travel in parts are those of one rank", "[ragged]") {
  for (const Case& c : kCases) {
    const Run one = run({"x:1", "", c.experts, c.rows}, 1);
    const Run whole = run(c, 1);
    for (const int parts : {2, 3}) {
      INFO(c.layout << " in " << parts << " parts");
      const Run cut = run(c, parts);
      check_equal(one, cut);
      CHECK(cut.losses[0] == whole.losses[0]);  // forward has the same bits
      const std::string mesh = c.mesh;  // two choices on two ranks: in whole, tokens are gathered
      if (mesh != "x:2" && mesh != "x:2;y:2") CHECK(cut.bytes == whole.bytes);
      CHECK(cut.bytes > 0);
    }
  }
}

TEST_CASE("one part of the rows travels while another is multiplied", "[ragged]") {
  const Moves whole = moves(run(kCases[0], 1).program), cut = moves(run(kCases[0], 2).program);
  CHECK(whole.all == 4);
  CHECK(whole.hidden == 0);
  CHECK(cut.all == 8);
  // To the experts the second half, back the first one, forward and backward.
  CHECK(cut.hidden >= 4);
}

TEST_CASE("parts whose bound is exceeded are repeated with larger ones", "[ragged]") {
  const Case c{"x:4", "batch,experts:x", 6, 64};
  const Run one = run({"x:1", "", c.experts, c.rows}, 1, 0.7), cut = run(c, 2, 0.7);
  CHECK(cut.repeated == 1);
  check_equal(one, cut);
}

/// The number of all_to_alls of a step on a machine whose links have this bandwidth.
int count_moves(double bandwidth, int chunks) {
  Machine machine = Machine::load("h100");
  for (LinkTier& link : machine.links) {
    link.latency = 1e-6;
    link.bandwidth = bandwidth;
    link.start = 0;
  }
  machine.collectives.clear();
  machine.overlap = {true, 1, 1};
  Graph g;
  const Dim batch("batch", 16), length("length", 1024), model("d_model", 2048);
  nn::MoeOptions o;
  o.experts = Dim("experts", 8);
  o.hidden = Dim("ff", 4096);
  o.expert.activations = {"silu", "linear"};
  const nn::Moe mixed =
      nn::moe(g.input("x", {batch, length, model}, DType::bfloat16), "moe", "d_model", o);
  const Tensor loss = (mean_all(square(cast(mixed.y, DType::float32))) + mixed.loss).named("loss");
  minimize(loss, constant(g, 0.01), adam());
  CompileOptions options{
      Mesh::parse("x:8"), Layout::parse("batch,experts:x"), {{"train", {loss}, true}}};
  options.chunks = chunks;
  options.machine = std::make_shared<const Machine>(machine);
  int count = 0;
  const Explanation explained = explain(g, options, {}, &machine);
  for (const CollectiveReport& c : explained.functions.back().collectives)
    count += c.kind == "all_to_all";
  return count;
}

TEST_CASE("rows travel in halves where links are slow", "[ragged]") {
  const int whole = count_moves(1e10, 1), cut = count_moves(1e10, 2);
  REQUIRE(cut == 2 * whole);
  CHECK(count_moves(1e10, 0) == cut);
  CHECK(count_moves(1e15, 0) == whole);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
