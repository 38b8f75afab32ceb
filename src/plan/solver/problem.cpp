#include <limits>
#include <map>

#include "base/fail.h"
#include "tessera/solver.h"

namespace tessera::solver {

namespace {

size_t entry_of(const Problem& problem, const Edge& edge, const std::vector<int>& choice) {
  size_t at = 0;
  for (const int v : edge.nodes) at = at * problem.nodes[v].cost.size() + choice[v];
  return at;
}

void count(int64_t cost, Evaluation& e) {
  if (cost >= kForbidden) {
    ++e.forbidden;
  } else {
    e.cost = cost > std::numeric_limits<int64_t>::max() - e.cost
                 ? std::numeric_limits<int64_t>::max()
                 : e.cost + cost;
  }
}

void check_costs(const std::vector<int64_t>& costs, const char* what, size_t index) {
  for (const int64_t c : costs)
    TESSERA_REQUIRE(c >= 0, "[solve] {} {} has the negative cost {}; costs are 0 or more", what,
                    index, c);
}

void check_node(const Problem& problem, size_t v) {
  const Node& node = problem.nodes[v];
  TESSERA_REQUIRE(!node.cost.empty(), "[solve] node {} has no strategy; every node needs one", v);
  TESSERA_REQUIRE(node.usage.empty() || node.usage.size() == node.cost.size(),
                  "[solve] node {} has {} costs and {} usages; every strategy has one of each", v,
                  node.cost.size(), node.usage.size());
  for (const int64_t u : node.usage) {
    TESSERA_REQUIRE(u >= 0 && u < (int64_t{1} << 50),
                    "[solve] node {} uses {} bytes; a usage is at least 0 and less than 2^50", v,
                    u);
  }
}

void check_edge(const Problem& problem, size_t e) {
  const Edge& edge = problem.edges[e];
  TESSERA_REQUIRE(!edge.nodes.empty(), "[solve] edge {} joins no nodes", e);
  size_t entries = 1;
  for (const int v : edge.nodes) {
    TESSERA_REQUIRE(v >= 0 && v < static_cast<int>(problem.nodes.size()),
                    "[solve] edge {} joins node {}, but there are {} nodes, counted from 0", e, v,
                    problem.nodes.size());
    entries *= problem.nodes[v].cost.size();
    TESSERA_REQUIRE(entries <= (size_t{1} << 28),
                    "[solve] edge {} has a table of more than 2^28 entries", e);
  }
  TESSERA_REQUIRE(entries == edge.cost.size(),
                  "[solve] edge {} has {} costs, but its nodes have {} combinations of strategies",
                  e, edge.cost.size(), entries);
}

}  // namespace

Evaluation evaluate(const Problem& problem, const std::vector<int>& choice) {
  Evaluation e;
  std::map<int64_t, int64_t> changes;
  for (size_t v = 0; v < problem.nodes.size(); ++v) {
    const Node& node = problem.nodes[v];
    count(node.cost[choice[v]], e);
    if (node.begin >= node.end || node.usage.empty()) continue;
    changes[node.begin] += node.usage[choice[v]];
    changes[node.end] -= node.usage[choice[v]];
  }
  for (const Edge& edge : problem.edges) count(edge.cost[entry_of(problem, edge, choice)], e);
  int64_t now = 0;
  for (const auto& [time, change] : changes) {
    now += change;
    if (now > e.peak) e.peak = now, e.at = time;
  }
  return e;
}

void check(const Problem& problem) {
  TESSERA_REQUIRE(!problem.limit || *problem.limit >= 0,
                  "[solve] the usage limit is {}; it is 0 or more, or left out",
                  problem.limit.value_or(0));
  for (size_t v = 0; v < problem.nodes.size(); ++v) {
    check_node(problem, v);
    check_costs(problem.nodes[v].cost, "node", v);
  }
  for (size_t e = 0; e < problem.edges.size(); ++e) {
    check_edge(problem, e);
    check_costs(problem.edges[e].cost, "edge", e);
  }
}

}  // namespace tessera::solver
