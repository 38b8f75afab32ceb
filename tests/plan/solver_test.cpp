// The solver against brute force, and its errors.
#include "tessera/solver.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <limits>
#include <numeric>

#include "cli/cli_run.h"
#include "plan/solver/elimination.h"
#include "plan/solver/partial_plans.h"
#include "plan/solver/reduce.h"
#include "support/catch.h"
#include "support/expect_error.h"

namespace tessera::test {

namespace TESSERA_FILE {

using namespace solver;

struct Random {
  uint64_t state;
  int64_t operator()(int64_t n) {
    uint64_t z = (state += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return static_cast<int64_t>((z ^ (z >> 31)) % static_cast<uint64_t>(n));
  }
};

std::vector<int64_t> random_table(Random& random, size_t entries, int64_t most, int64_t forbid) {
  std::vector<int64_t> table(entries);
  for (int64_t& c : table) c = random(100) < forbid ? kForbidden * 4 : random(most);
  return table;
}

/// Up to 7 nodes of up to 4 strategies, edges of 1 to 3 nodes (pairs may repeat, nodes too), some
/// followers (a table with one allowed entry a row), memory over intervals; a limit in 2 of 3.
Problem random_problem(uint64_t seed) {
  Random random{seed};
  Problem p;
  const int n = 1 + static_cast<int>(random(7));
  const int64_t most = random(2) == 0 ? 8 : 1000, forbid = random(3) * 12;
  for (int v = 0; v < n; ++v) {
    const size_t k = 1 + static_cast<size_t>(random(4));
    const int64_t begin = random(6);
    p.nodes.push_back({random_table(random, k, most, forbid / 3), random_table(random, k, 20, 0),
                       begin, begin + random(6)});
  }
  const int64_t edges = random(2 * n + 1);
  for (int64_t e = 0; e < edges; ++e) {
    Edge edge;
    const int64_t ends = random(8) == 0 ? 3 : random(12) == 0 ? 1 : 2;
    size_t entries = 1;
    for (int64_t i = 0; i < ends; ++i) {
      edge.nodes.push_back(static_cast<int>(random(n)));
      entries *= p.nodes[edge.nodes.back()].cost.size();
    }
    edge.cost = random_table(random, entries, most, forbid);
    if (ends == 2 && random(4) == 0) {
      const size_t k = p.nodes[edge.nodes[1]].cost.size();
      for (size_t i = 0; i < entries; ++i) {
        if (i % k != (i / k) % k) edge.cost[i] = kForbidden;
      }
    }
    p.edges.push_back(std::move(edge));
  }
  if (random(3) > 0) p.limit = 10 + random(12 * n);
  return p;
}

/// The least cost, or -1.
int64_t brute_force(const Problem& p) {
  std::vector<int> choice(p.nodes.size());
  int64_t best = -1;
  for (bool more = true; more;) {
    const Evaluation e = evaluate(p, choice);
    if (e.forbidden == 0 && (!p.limit || e.peak <= *p.limit) && (best < 0 || e.cost < best)) {
      best = e.cost;
    }
    more = false;
    for (size_t v = 0; v < choice.size() && !more; ++v) {
      more = ++choice[v] < static_cast<int>(p.nodes[v].cost.size());
      if (!more) choice[v] = 0;
    }
  }
  return best;
}

/// The cost that solve() finds, or -1 where it says that there is none.
int64_t solved(const Problem& p, const Options& options = {}) {
  try {
    const Solution s = solve(p, options);
    const Evaluation e = evaluate(p, s.choice);
    CHECK(e.cost == s.cost);
    CHECK(e.forbidden == 0);
    CHECK((!p.limit || e.peak <= *p.limit));
    CHECK(s.bound <= s.cost);
    if (options.entries > 1) CHECK(s.optimal);
    return s.cost;
  } catch (const Error& e) {
    INFO(e.what());
    CHECK(e.kind() == ErrorKind::usage);
    return -1;
  }
}

/// Nodes in another order, strategies in reverse, edges turned round.
Problem renamed(const Problem& p, uint64_t seed) {
  Random random{seed};
  std::vector<int> to(p.nodes.size());
  std::iota(to.begin(), to.end(), 0);
  for (size_t i = to.size(); i > 1; --i) std::swap(to[i - 1], to[random(static_cast<int64_t>(i))]);
  Problem q = p;
  for (size_t v = 0; v < p.nodes.size(); ++v) {
    Node& node = q.nodes[to[v]] = p.nodes[v];
    std::reverse(node.cost.begin(), node.cost.end());
    std::reverse(node.usage.begin(), node.usage.end());
  }
  for (Edge& edge : q.edges) {
    std::reverse(edge.cost.begin(), edge.cost.end());
    for (int& v : edge.nodes) v = to[v];
  }
  std::reverse(q.edges.begin(), q.edges.end());
  return q;
}

/// How many random problems; TESSERA_SOLVER_PROBLEMS=100000 for a long run.
uint64_t problems() {
  const char* text = std::getenv("TESSERA_SOLVER_PROBLEMS");
  return text ? std::strtoull(text, nullptr, 10) : 2000;
}

TEST_CASE("solver: the optimum of random problems is that of brute force", "[solver]") {
  int with_plan = 0, without = 0, limited = 0;
  for (uint64_t seed = 0; seed < problems(); ++seed) {
    const Problem p = random_problem(seed);
    const int64_t best = brute_force(p);
    INFO("seed " << seed);
    REQUIRE(solved(p) == best);
    REQUIRE(solved(renamed(p, seed)) == best);
    ++(best < 0 ? without : with_plan);
    limited += p.limit.has_value();
  }
  CHECK(with_plan > without);
  CHECK(without > 0);
  CHECK(limited > 0);
}

TEST_CASE("solver: where nothing may be exact, bound <= optimum <= plan", "[solver]") {
  Options options;
  options.entries = 1;
  options.seconds = 0.02;
  int found = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Problem p = random_problem(seed);
    const int64_t best = brute_force(p);
    INFO("seed " << seed);
    if (best < 0) {
      CHECK(solved(p, options) == -1);
      continue;
    }
    try {
      const Solution s = solve(p, options);
      CHECK(s.bound <= best);
      CHECK(best <= s.cost);
      CHECK(evaluate(p, s.choice).cost == s.cost);
      ++found;
    } catch (const Error& e) {
      CHECK(std::string(e.what()).find("choice was found") != std::string::npos);
    }
  }
  CHECK(found > 120);
}

TEST_CASE("solver: reduction alone keeps the optimum and its way back", "[solver]") {
  int smaller = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Problem p = random_problem(seed);
    p.limit.reset();
    const int64_t best = brute_force(p);
    const Reduction reduction(p);
    INFO("seed " << seed);
    if (!reduction.infeasible().empty()) {
      CHECK(best == -1);
      continue;
    }
    const Model& model = reduction.model();
    Elimination elimination(model, 1 << 20);
    REQUIRE(elimination.fits());
    std::vector<int> choice;
    const int64_t least = elimination.run(model.cost, choice);
    CHECK((best < 0) == (least >= kWall));
    if (best < 0) continue;
    CHECK(least + model.base == best << model.shift);
    CHECK(evaluate(p, reduction.expand(choice)).cost == best);
    smaller += model.nodes() < static_cast<int>(p.nodes.size());
  }
  CHECK(smaller > 100);
}

TEST_CASE("solver: min-marginals are the least costs with each strategy", "[solver]") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Problem p = random_problem(seed);
    p.limit.reset();
    const Reduction reduction(p);
    if (!reduction.infeasible().empty()) continue;
    const Model& model = reduction.model();
    Elimination elimination(model, 1 << 20);
    std::vector<int> choice;
    if (elimination.run(model.cost, choice) >= kWall) continue;
    const auto marginals = elimination.marginals();
    for (int v = 0; v < model.nodes(); ++v) {
      for (int s = 0; s < model.size(v); ++s) {
        auto forced = model.cost;
        for (int t = 0; t < model.size(v); ++t) {
          if (t != s) forced[v][t] = kWall;
        }
        INFO("seed " << seed << " node " << v << " strategy " << s);
        CHECK(elimination.run(forced, choice) == marginals[v][s]);
      }
    }
  }
}

TEST_CASE("solver: a chain of 200 nodes under a tight limit is solved exactly", "[solver]") {
  Random random{7};
  Problem p;
  int64_t least = 0, at_best = 0;
  for (int v = 0; v < 200; ++v) {
    Node node{{}, {}, 0, 1};
    for (int s = 0; s < 8; ++s) {
      node.cost.push_back(random(1000000));
      node.usage.push_back(1000 + random(100000));
    }
    least += *std::min_element(node.usage.begin(), node.usage.end());
    at_best += *std::max_element(node.usage.begin(), node.usage.end());
    p.nodes.push_back(std::move(node));
    if (v > 0) p.edges.push_back({{v - 1, v}, random_table(random, 64, 1000000, 0)});
  }
  p.limit = least + (at_best - least) / 10;
  const Solution s = solve(p);
  CHECK(s.optimal);
  CHECK(s.price > 0);
  CHECK(solve(renamed(p, 3)).cost == s.cost);
  Problem tighter = p;
  tighter.limit = *p.limit - 50000;
  const Solution t = solve(tighter);
  CHECK(t.optimal);
  CHECK(t.cost > s.cost);
}

TEST_CASE("solver: memory that prices cannot share out is settled by parts", "[solver]") {
  Options options;
  options.entries = 1;  // as if the graph were wide
  options.seconds = 5;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Random random{seed};
    Problem p;
    int64_t least = 0, most = 0;
    for (int v = 0; v < 8; ++v) {  // few large pieces, alive at overlapping times
      const int64_t begin = random(4);
      Node node{random_table(random, 4, 1000, 0), random_table(random, 4, 100, 0), begin,
                begin + 2 + random(4)};
      least += *std::min_element(node.usage.begin(), node.usage.end());
      most += *std::max_element(node.usage.begin(), node.usage.end());
      p.nodes.push_back(std::move(node));
      for (int u = 0; u < v; ++u) {
        if (random(2) == 0) p.edges.push_back({{u, v}, random_table(random, 16, 300, 10)});
      }
    }
    p.limit = least + (most - least) / 8;
    const int64_t best = brute_force(p);
    INFO("seed " << seed);
    if (best < 0) continue;
    const Solution s = solve(p, options);
    CHECK(s.optimal);
    CHECK(s.cost == best);
  }
}

TEST_CASE("solver: what cannot be solved says why", "[solver]") {
  const Problem fine{"", {{{1, 2}, {5, 3}, 0, 4}, {{1}, {4}, 2, 6}}, {{{0, 1}, {0, 0}}}, 8};
  CHECK(solve(fine).cost == 3);
  Problem p = fine;
  p.limit = 6;
  expect_usage({"no choice fits into the usage limit of 6 bytes", "needs 7 bytes, at time 2"},
               [&] { solve(p); });
  p = fine;
  p.edges[0].cost = {kForbidden, kForbidden};
  expect_usage({"nothing is allowed", "node"}, [&] { solve(p); });
  p = fine;
  p.nodes[1].cost.clear();
  expect_usage({"node 1 has no strategy"}, [&] { solve(p); });
  p = fine;
  p.nodes[0].usage.pop_back();
  expect_usage({"node 0 has 2 costs and 1 usages"}, [&] { solve(p); });
  p = fine;
  p.nodes[0].usage[0] = -1;
  expect_usage({"node 0 uses -1 bytes"}, [&] { solve(p); });
  p = fine;
  p.nodes[0].cost[1] = -2;
  expect_usage({"node 0 has the negative cost -2"}, [&] { solve(p); });
  p = fine;
  p.edges[0].nodes[1] = 2;
  expect_usage({"edge 0 joins node 2, but there are 2 nodes"}, [&] { solve(p); });
  p = fine;
  p.edges[0].nodes.clear();
  expect_usage({"edge 0 joins no nodes"}, [&] { solve(p); });
  p = fine;
  p.edges[0].cost.pop_back();
  expect_usage({"edge 0 has 1 costs", "2 combinations"}, [&] { solve(p); });
  p = fine;
  p.limit = -1;
  expect_usage({"the usage limit is -1"}, [&] { solve(p); });
  p = fine;
  p.nodes.resize(1);
  p.edges.clear();
  p.limit.reset();
  p.nodes[0].cost = {kForbidden - 1, kForbidden - 1};
  p.nodes.resize(20, p.nodes[0]);
  expect_usage({"the least cost that was found is 2^63 - 1 or more", "divide all costs by 1024"},
               [&] { solve(p); });
}

TEST_CASE("solver: costs that add up to more than 64 bits hold", "[solver]") {
  int exact = 0, solved_ones = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Problem p = random_problem(seed);
    Random random{seed};
    // From one table in ten of small costs to all of them large: optima both small and huge.
    const int64_t share = 1 + random(10);
    const auto enlarge = [&](std::vector<int64_t>& costs) {
      for (int64_t& c : costs) {
        if (c < kForbidden && random(10) < share) c = c * (kForbidden / 2048) + random(1 << 20);
      }
    };
    for (Node& node : p.nodes) enlarge(node.cost);
    for (Edge& edge : p.edges) enlarge(edge.cost);
    const int64_t best = brute_force(p);
    INFO("seed " << seed);
    try {
      const Solution s = solve(p);
      const Evaluation e = evaluate(p, s.choice);
      ++solved_ones;
      exact += s.optimal;
      CHECK(e.forbidden == 0);
      CHECK(e.cost == s.cost);
      CHECK((!p.limit || e.peak <= *p.limit));
      CHECK(s.bound <= best);
      CHECK(s.cost >= best);
      CHECK(static_cast<double>(s.cost - best) <= 1e-12 * static_cast<double>(best));
      CHECK((!s.optimal || s.cost == best));
    } catch (const Error& e) {
      INFO(e.what());
      CHECK((best < 0 || best == std::numeric_limits<int64_t>::max()));
    }
  }
  CHECK(solved_ones > 150);
  CHECK(exact > solved_ones / 4);
}

TEST_CASE("solve: the command line prints cost and bound, and names what is wrong", "[cli]") {
  const Folder f;
  f.write("p.json", R"({"problem": {"name": "two", "nodes": {"intervals": [[0, 2], [1, 3]],
    "costs": [[5, 1], [4, 2]], "usages": [[1, 3], [1, 3]]},
    "edges": {"nodes": [[0, 1]], "costs": [[0, 3, 3, 0]]}, "usage_limit": 5}})");
  expect_success(run_cli_in(f, "solve p.json --json s.json"));
  const nlohmann::json report = json_of(f, "s.json");
  CHECK(report["cost"] == 8);
  CHECK(report["bound"] == 8);
  CHECK(report["optimal"] == true);
  expect_failure(run_cli_in(f, "solve nowhere.json"), 1, {"cannot open 'nowhere.json'"});
  f.write("bad.json", "{\"problem\": 3}");
  expect_failure(run_cli_in(f, "solve bad.json"), 1, {"there is no 'nodes' where one belongs"});
  for (const char* number : {"1.5", "99999999999999999999999", "\"2\""}) {
    f.write("real.json", std::string(R"({"problem":{"nodes":{"intervals":[[0,1]],"costs":[[)") +
                             number +
                             R"(,3]],"usages":[[1,1]]},"edges":{"nodes":[],"costs":[]}}})");
    expect_failure(run_cli_in(f, "solve real.json"), 1,
                   {"[solve] costs are whole numbers up to 2^63 - 1"});
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
