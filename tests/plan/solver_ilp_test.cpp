// The solver against an integer program, where GLPK's glpsol is installed: problems too large for
// brute force.
#include <fmt/format.h>

#include <cstdlib>
#include <random>

#include "support/catch.h"
#include "support/io_folder.h"
#include "tessera/solver.h"

namespace tessera::test {

namespace TESSERA_FILE {

using namespace solver;

/// `nodes` nodes of 2 to 4 strategies, twice as many edges of two, and a limit that binds.
Problem wide_problem(uint64_t seed, int nodes) {
  std::mt19937_64 engine(seed);
  auto below = [&](int64_t n) { return static_cast<int64_t>(engine() % static_cast<uint64_t>(n)); };
  Problem p;
  int64_t most = 0;
  for (int v = 0; v < nodes; ++v) {
    Node node;
    for (int64_t k = 2 + below(3); k > 0; --k) {
      node.cost.push_back(below(1000));
      node.usage.push_back(1 + below(50));
      most += node.usage.back();
    }
    node.begin = below(8);
    node.end = node.begin + 1 + below(6);
    p.nodes.push_back(std::move(node));
  }
  for (int e = 0; e < 2 * nodes; ++e) {
    const auto a = static_cast<int>(below(nodes)), b = static_cast<int>(below(nodes - 1));
    Edge edge{{a, b < a ? b : b + 1}, {}};
    const size_t entries = p.nodes[a].cost.size() * p.nodes[edge.nodes[1]].cost.size();
    for (size_t i = 0; i < entries; ++i)
      edge.cost.push_back(below(12) == 0 ? kForbidden : below(1000));
    p.edges.push_back(std::move(edge));
  }
  p.limit = most / 8;
  return p;
}

/// A binary for each strategy; for each pair of an edge a number that its two sums tie to them.
std::string program_of(const Problem& p) {
  std::string sum = "Minimize\n cost:", rows = "Subject To\n", binaries = "Binary\n";
  for (size_t v = 0; v < p.nodes.size(); ++v) {
    std::string one;
    for (size_t k = 0; k < p.nodes[v].cost.size(); ++k) {
      sum += fmt::format(" + {} x{}_{}\n", p.nodes[v].cost[k], v, k);
      one += fmt::format(" + x{}_{}", v, k);
      binaries += fmt::format(" x{}_{}\n", v, k);
    }
    rows += one + " = 1\n";
  }
  for (size_t e = 0; e < p.edges.size(); ++e) {
    const auto a = static_cast<size_t>(p.edges[e].nodes[0]),
               b = static_cast<size_t>(p.edges[e].nodes[1]);
    const size_t m = p.nodes[a].cost.size(), n = p.nodes[b].cost.size();
    std::vector<std::string> of_a(m), of_b(n);
    for (size_t i = 0; i < m * n; ++i) {
      const int64_t cost = p.edges[e].cost[i];
      if (cost >= kForbidden) continue;
      const std::string pair = fmt::format("y{}_{}", e, i);
      sum += fmt::format(" + {} {}\n", cost, pair);
      of_a[i / n] += " + " + pair;
      of_b[i % n] += " + " + pair;
    }
    for (size_t i = 0; i < m; ++i) rows += fmt::format("{} - x{}_{} = 0\n", of_a[i], a, i);
    for (size_t j = 0; j < n; ++j) rows += fmt::format("{} - x{}_{} = 0\n", of_b[j], b, j);
  }
  for (int64_t t = 0; t < 16; ++t) {
    std::string used;
    for (size_t v = 0; v < p.nodes.size(); ++v) {
      if (p.nodes[v].begin > t || t >= p.nodes[v].end) continue;
      for (size_t k = 0; k < p.nodes[v].usage.size(); ++k)
        used += fmt::format(" + {} x{}_{}\n", p.nodes[v].usage[k], v, k);
    }
    if (!used.empty()) rows += fmt::format("{} <= {}\n", used, *p.limit);
  }
  return sum + rows + binaries + "End\n";
}

TEST_CASE("solver: the optimum of wider problems is that of an integer program", "[solver]") {
  if (std::system("glpsol --version > /dev/null 2>&1") != 0) {
    WARN("GLPK's glpsol is not installed: not run");
    return;
  }
  const Folder f;
  int solved = 0, limited = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    INFO("seed " << seed);
    const Problem p = wide_problem(seed, 12 + static_cast<int>(seed % 7));
    f.write("problem.lp", program_of(p));
    const std::string run = "cd '" + f.dir + "' && glpsol --tmlim 10 --lp problem.lp -o answer.txt";
    REQUIRE(std::system((run + " > log.txt 2>&1").c_str()) == 0);
    const std::string answer = f.read("answer.txt");
    if (answer.find("INTEGER EMPTY") != std::string::npos) {
      CHECK_THROWS_AS(solve(p, {}), Error);
      continue;
    }
    if (answer.find("INTEGER OPTIMAL") == std::string::npos) continue;  // it did not finish
    const size_t at = answer.find("cost = ");
    REQUIRE(at != std::string::npos);
    const auto best = static_cast<int64_t>(std::atof(answer.c_str() + at + 7));
    const Solution s = solve(p, {});
    CHECK(s.cost == best);
    CHECK(s.bound <= best);
    ++solved;
    Problem free = p;
    free.limit.reset();
    limited += solve(free, {}).cost < best;
  }
  CHECK(solved >= 30);
  CHECK(limited >= 10);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
