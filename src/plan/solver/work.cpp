#include "plan/solver/work.h"

#include <algorithm>

#include "base/fail.h"

namespace tessera::solver {

int WorkGraph::add_node(std::vector<int64_t> cost) {
  Work work;
  work.problem_size = static_cast<int>(cost.size());
  for (int s = 0; s < work.problem_size; ++s) work.original.push_back(s);
  work.cost = std::move(cost);
  nodes.push_back(std::move(work));
  node_is_due_.push_back(false);
  due_node(static_cast<int>(nodes.size()) - 1);
  return static_cast<int>(nodes.size()) - 1;
}

void WorkGraph::due_node(int v) {
  if (!node_is_due_[v]) nodes_due_.push_back(v), node_is_due_[v] = true;
}
void WorkGraph::due_pair(int e) {
  if (!pair_is_due_[e]) pairs_due_.push_back(e), pair_is_due_[e] = true;
}

void WorkGraph::add_pair(int a, int b, const std::vector<int64_t>& table) {
  const auto found = nodes[a].pairs.find(b);
  if (found == nodes[a].pairs.end()) {
    const int e = static_cast<int>(pairs.size());
    pairs.push_back({a, b, table});
    alive_.push_back(true);
    pair_is_due_.push_back(false);
    nodes[a].pairs[b] = nodes[b].pairs[a] = e;
    due_pair(e);
    return;
  }
  Pair& pair = pairs[found->second];
  const size_t ka = nodes[a].cost.size(), kb = nodes[b].cost.size();
  for (size_t i = 0; i < ka; ++i) {
    for (size_t j = 0; j < kb; ++j) {
      int64_t& c = pair.cost[pair.a == a ? i * kb + j : j * ka + i];
      c = sum(c, table[i * kb + j]);
    }
  }
  due_pair(found->second);
}

void WorkGraph::remove_pair(int e) {
  alive_[e] = false;
  pairs[e].cost = {};
  nodes[pairs[e].a].pairs.erase(pairs[e].b);
  nodes[pairs[e].b].pairs.erase(pairs[e].a);
  due_node(pairs[e].a);
  due_node(pairs[e].b);
}

std::vector<int64_t> WorkGraph::oriented(int e, int v) const {
  const Pair& pair = pairs[e];
  if (pair.a == v) return pair.cost;
  const size_t ka = nodes[pair.a].cost.size(), kb = nodes[pair.b].cost.size();
  std::vector<int64_t> t(pair.cost.size());
  for (size_t i = 0; i < ka; ++i) {
    for (size_t j = 0; j < kb; ++j) t[j * ka + i] = pair.cost[i * kb + j];
  }
  return t;
}

void WorkGraph::restrict_node(int v, const std::vector<bool>& keep) {
  Work& work = nodes[v];
  const size_t old = work.cost.size();
  const auto shrink = [&](auto& list) {
    size_t to = 0;
    for (size_t s = 0; s < old; ++s) {
      if (keep[s]) list[to++] = list[s];
    }
    list.resize(to);
  };
  for (const auto& [u, e] : work.pairs) {
    Pair& pair = pairs[e];
    const size_t other = nodes[u].cost.size();
    size_t to = 0;
    const size_t rows = pair.a == v ? old : other, columns = pair.a == v ? other : old;
    for (size_t i = 0; i < rows; ++i) {
      for (size_t j = 0; j < columns; ++j) {
        if (keep[pair.a == v ? i : j]) pair.cost[to++] = pair.cost[i * columns + j];
      }
    }
    pair.cost.resize(to);
    due_pair(e);
  }
  shrink(work.cost);
  shrink(work.original);
  for (Use& use : work.uses) shrink(use.usage);
  due_node(v);
  if (work.cost.empty()) {
    infeasible = fmt::format("node {} has no strategy that its neighbours allow", v);
  }
}

void WorkGraph::prune_node(int v) {
  std::vector<bool> keep(nodes[v].cost.size());
  for (size_t s = 0; s < keep.size(); ++s) keep[s] = nodes[v].cost[s] < kWall;
  if (std::find(keep.begin(), keep.end(), false) != keep.end()) restrict_node(v, keep);
}

void WorkGraph::add_use(int v, Use use) {
  for (Use& other : nodes[v].uses) {
    if (other.first != use.first || other.last != use.last) continue;
    for (size_t i = 0; i < use.usage.size(); ++i) other.usage[i] += use.usage[i];
    return;
  }
  nodes[v].uses.push_back(std::move(use));
}

int WorkGraph::next_pair() {
  while (!pairs_due_.empty()) {
    const int e = pairs_due_.front();
    pairs_due_.pop_front();
    pair_is_due_[e] = false;
    if (alive_[e]) return e;
  }
  return -1;
}

int WorkGraph::next_node() {
  while (!nodes_due_.empty()) {
    const int v = nodes_due_.front();
    nodes_due_.pop_front();
    node_is_due_[v] = false;
    if (nodes[v].alive) return v;
  }
  return -1;
}

}  // namespace tessera::solver
