#include "plan/solver/load.h"

#include <algorithm>
#include <map>

#include "plan/solver/model.h"

namespace tessera::solver {

int shift_of(const Problem& problem) {
  __int128 total = 1;
  const auto add = [&](const std::vector<int64_t>& costs) {
    int64_t most = 0;
    for (const int64_t c : costs) {
      if (c < kForbidden) most = std::max(most, c);
    }
    total += most;
  };
  for (const Node& node : problem.nodes) add(node.cost);
  for (const Edge& edge : problem.edges) add(edge.cost);
  constexpr int kMostSpare = 10;
  constexpr int64_t kSpareBelow = int64_t{1} << 50;
  int bits = 0;
  while (bits < kMostSpare && (total << (bits + 1)) < kSpareBelow) ++bits;
  while ((total >> -std::min(bits, 0)) >= kMostCost) --bits;
  return bits;
}

LiveTimes find_live_times(const Problem& problem) {
  const size_t n = problem.nodes.size();
  LiveTimes m{0, std::vector<int>(n), std::vector<int>(n)};
  if (!problem.limit) return m;
  std::map<int64_t, std::pair<std::vector<int>, std::vector<int>>> changes;  // born, dead
  for (size_t v = 0; v < n; ++v) {
    const Node& node = problem.nodes[v];
    if (node.begin >= node.end || node.usage.empty()) continue;
    if (*std::max_element(node.usage.begin(), node.usage.end()) == 0) continue;
    changes[node.begin].first.push_back(static_cast<int>(v));
    changes[node.end].second.push_back(static_cast<int>(v));
  }
  int64_t most = 0;
  bool grown = false;
  const auto largest = [&](int v) {
    return *std::max_element(problem.nodes[v].usage.begin(), problem.nodes[v].usage.end());
  };
  for (const auto& [time, change] : changes) {
    const auto& [born, dead] = change;
    if (grown && !dead.empty()) {
      m.count += most > *problem.limit;
      grown = false;
    }
    for (const int v : dead) most -= largest(v), m.last[v] = m.count;
    for (const int v : born) most += largest(v), m.first[v] = m.count, grown = true;
  }
  return m;
}

Rows allowed_rows(const Problem& problem, const Edge& edge) {
  Rows result;
  std::vector<int>& nodes = result.nodes;
  nodes = edge.nodes;
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  std::vector<int> at(edge.nodes.size(), 0);
  for (const int64_t cost : edge.cost) {
    std::vector<int> row(nodes.size(), -1);
    bool consistent = true;
    for (size_t i = 0; i < at.size(); ++i) {
      const size_t n = std::lower_bound(nodes.begin(), nodes.end(), edge.nodes[i]) - nodes.begin();
      consistent = consistent && (row[n] < 0 || row[n] == at[i]);
      row[n] = at[i];
    }
    if (consistent && cost < kForbidden) {
      result.rows.push_back(std::move(row));
      result.costs.push_back(cost);
    }
    for (size_t i = at.size(); i-- > 0;) {
      if (++at[i] < static_cast<int>(problem.nodes[edge.nodes[i]].cost.size())) break;
      at[i] = 0;
    }
  }
  return result;
}

}  // namespace tessera::solver
