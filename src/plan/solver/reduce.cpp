// Reduction works off two lists until both are empty: pairs whose table or nodes changed, and nodes
// whose degree changed. Tables shrink as strategies are dropped. An eliminated node leaves a record
// that gives its strategy from those of its neighbours; at the end the records are read backwards.
#include "plan/solver/reduce.h"

#include <algorithm>

#include "base/fail.h"
#include "plan/solver/load.h"
#include "plan/solver/work.h"

namespace tessera::solver {

namespace {

constexpr size_t kComparisons = size_t{1} << 25;  // entries, to find dominated strategies

}  // namespace

class Reducer {
 public:
  Reducer(const Problem& problem, Reduction& to) : to_(to) {
    load(problem);
    while (graph_.infeasible.empty()) {
      if (const int e = graph_.next_pair(); e >= 0) {
        visit_pair(e);
      } else if (const int v = graph_.next_node(); v >= 0) {
        visit_node(v);
      } else {
        break;
      }
    }
    to_.infeasible_ = graph_.infeasible;
    if (to_.infeasible_.empty()) finish();
  }

 private:
  // ---- The problem as pairs.
  void load(const Problem& problem) {
    to_.problem_nodes_ = static_cast<int>(problem.nodes.size());
    LiveTimes points = find_live_times(problem);
    to_.model_.points = points.count;
    to_.model_.limit = std::max<int64_t>(1, problem.limit.value_or(0));
    to_.model_.shift = shift_of(problem);
    for (size_t v = 0; v < problem.nodes.size(); ++v) {
      std::vector<int64_t> cost = problem.nodes[v].cost;
      for (size_t s = 0; s < cost.size(); ++s) {
        const bool too_large = points.first[v] < points.last[v] &&
                               problem.nodes[v].usage[s] > problem.limit.value_or(0);
        cost[s] = too_large ? kWall : scaled(cost[s]);
      }
      graph_.add_node(std::move(cost));
      if (points.first[v] < points.last[v]) {
        nodes_[v].uses.push_back({points.first[v], points.last[v], problem.nodes[v].usage});
      }
    }
    for (const Edge& edge : problem.edges) load_edge(problem, edge);
    for (int v = 0; v < static_cast<int>(nodes_.size()); ++v) graph_.prune_node(v);
  }

  int64_t scaled(int64_t cost) const {
    const int shift = to_.model_.shift;
    return cost >= kForbidden ? kWall : shift < 0 ? cost >> -shift : cost << shift;
  }

  /// An edge of one node adds to the node's cost; an edge of two is a pair. An edge of more becomes
  /// a node of its own, whose strategies are the combinations that it allows.
  void load_edge(const Problem& problem, const Edge& edge) {
    if (edge.nodes.size() == 2 && edge.nodes[0] != edge.nodes[1]) {
      std::vector<int64_t> table(edge.cost.size());
      std::transform(edge.cost.begin(), edge.cost.end(), table.begin(),
                     [&](int64_t c) { return scaled(c); });
      graph_.add_pair(edge.nodes[0], edge.nodes[1], table);
      return;
    }
    auto [nodes, rows, costs] = allowed_rows(problem, edge);
    for (int64_t& cost : costs) cost = scaled(cost);
    if (nodes.size() == 1) {
      std::vector<int64_t> by_strategy(nodes_[nodes[0]].cost.size(), kWall);
      for (size_t i = 0; i < rows.size(); ++i) by_strategy[rows[i][0]] = costs[i];
      for (size_t s = 0; s < by_strategy.size(); ++s) {
        nodes_[nodes[0]].cost[s] = WorkGraph::sum(nodes_[nodes[0]].cost[s], by_strategy[s]);
      }
      return;
    }
    const int edge_node = static_cast<int>(nodes_.size());
    if (rows.empty()) {
      graph_.infeasible = fmt::format("an edge of {} nodes allows no combination", nodes.size());
      return;
    }
    graph_.add_node(std::move(costs));
    for (size_t n = 0; n < nodes.size(); ++n) {
      const size_t k = nodes_[nodes[n]].cost.size();
      std::vector<int64_t> table(rows.size() * k, kWall);
      for (size_t i = 0; i < rows.size(); ++i) table[i * k + rows[i][n]] = 0;
      graph_.add_pair(edge_node, nodes[n], table);
    }
  }

  // ---- Rules.
  void visit_pair(int e) {
    const int a = pairs_[e].a, b = pairs_[e].b;
    const size_t ka = nodes_[a].cost.size(), kb = nodes_[b].cost.size();
    std::vector<int> of_a(ka), of_b(kb);  // allowed partners
    for (size_t i = 0; i < ka; ++i) {
      for (size_t j = 0; j < kb; ++j) {
        if (pairs_[e].cost[i * kb + j] < kWall) ++of_a[i], ++of_b[j];
      }
    }
    for (const bool second : {false, true}) {
      const std::vector<int>& partners = second ? of_b : of_a;
      if (std::find(partners.begin(), partners.end(), 0) == partners.end()) continue;
      std::vector<bool> keep(partners.begin(), partners.end());
      graph_.restrict_node(second ? b : a, keep);
      return;
    }
    if (is_sum(pairs_[e], ka, kb)) return drop_sum(e, ka, kb);
    const bool a_follows = std::all_of(of_b.begin(), of_b.end(), [](int n) { return n == 1; });
    const bool b_follows = std::all_of(of_a.begin(), of_a.end(), [](int n) { return n == 1; });
    const bool a_smaller = nodes_[a].pairs.size() <= nodes_[b].pairs.size();
    if (a_follows && (a_smaller || !b_follows) && growth_is_fine(a, b)) return fold(a, b, e);
    if (b_follows && growth_is_fine(b, a)) return fold(b, a, e);
  }

  /// True if the table is a sum of two functions of one node each, with nothing forbidden.
  static bool is_sum(const Pair& pair, size_t ka, size_t kb) {
    for (size_t i = 0; i < ka; ++i) {
      for (size_t j = 0; j < kb; ++j) {
        const int64_t c = pair.cost[i * kb + j];
        if (c >= kWall || c != pair.cost[i * kb] + pair.cost[j] - pair.cost[0]) return false;
      }
    }
    return true;
  }

  void drop_sum(int e, size_t ka, size_t kb) {
    const Pair& pair = pairs_[e];
    const int64_t least = *std::min_element(pair.cost.begin(), pair.cost.begin() + kb);
    for (size_t i = 0; i < ka; ++i) {
      nodes_[pair.a].cost[i] += pair.cost[i * kb] - pair.cost[0] + least;
    }
    for (size_t j = 0; j < kb; ++j) nodes_[pair.b].cost[j] += pair.cost[j] - least;
    graph_.remove_pair(e);
  }

  bool growth_is_fine(int v, int into) const {
    size_t entries = 0;
    for (const auto& [u, e] : nodes_[v].pairs) entries += nodes_[u].cost.size();
    const size_t added = entries * nodes_[into].cost.size();
    return added <= 8 * entries * nodes_[v].cost.size() + (size_t{1} << 16);
  }

  /// Folds v into u: v takes the one strategy that u's strategy allows.
  void fold(int v, int u, int e) {
    const size_t ku = nodes_[u].cost.size(), kv = nodes_[v].cost.size();
    const std::vector<int64_t> table = graph_.oriented(e, u);
    std::vector<int> of(ku);
    for (size_t i = 0; i < ku; ++i) {
      while (table[i * kv + of[i]] >= kWall) ++of[i];
      nodes_[u].cost[i] += nodes_[v].cost[of[i]] + table[i * kv + of[i]];
    }
    record(v, u, of);
    for (const Use& use : nodes_[v].uses) add_use_to(u, use, of);
    graph_.remove_pair(e);
    while (!nodes_[v].pairs.empty()) {
      const auto [w, old] = *nodes_[v].pairs.begin();
      const std::vector<int64_t> from = graph_.oriented(old, v);
      graph_.remove_pair(old);
      const size_t kw = nodes_[w].cost.size();
      std::vector<int64_t> to(ku * kw);
      for (size_t i = 0; i < ku; ++i) {
        std::copy_n(from.begin() + of[i] * kw, kw, to.begin() + i * kw);
      }
      graph_.add_pair(u, w, to);
    }
    nodes_[v].alive = false;
  }

  void add_use_to(int u, const Use& use, const std::vector<int>& of) {
    Use mapped{use.first, use.last, std::vector<int64_t>(of.size())};
    for (size_t i = 0; i < of.size(); ++i) mapped.usage[i] = use.usage[of[i]];
    graph_.add_use(u, std::move(mapped));
  }

  /// Records v's strategy for each strategy of a.
  void record(int v, int a, const std::vector<int>& of) {
    Reduction::Follows follows{v, a, -1, 1, std::vector<int>(nodes_[a].problem_size)};
    for (size_t i = 0; i < of.size(); ++i) {
      follows.table[nodes_[a].original[i]] = nodes_[v].original[of[i]];
    }
    to_.follows_.push_back(std::move(follows));
  }

  void visit_node(int v) {
    if (nodes_[v].cost.size() == 1) return;  // its pairs are sums by now
    if (drop_beaten(v)) return;
    if (nodes_[v].holds_memory() || nodes_[v].pairs.size() > 2) return;
    if (nodes_[v].pairs.empty()) return;
    if (nodes_[v].pairs.size() == 1) return fold_leaf(v);
    fold_bridge(v);
  }

  /// Drops dominated strategies: another one is no worse, whatever the neighbours choose.
  bool drop_beaten(int v) {
    const size_t k = nodes_[v].cost.size();
    size_t entries = 0;
    std::vector<std::pair<std::vector<int64_t>, size_t>> tables;
    for (const auto& [u, e] : nodes_[v].pairs) entries += nodes_[u].cost.size();
    if (entries * k * k > kComparisons) return false;
    for (const auto& [u, e] : nodes_[v].pairs) {
      tables.emplace_back(graph_.oriented(e, v), nodes_[u].cost.size());
    }
    std::vector<bool> keep(k, true);
    for (size_t i = 0; i < k; ++i) {
      for (size_t j = 0; j < k && keep[i]; ++j) {
        if (i != j && keep[j] && beats(v, j, i, tables)) keep[i] = false;
      }
    }
    if (std::find(keep.begin(), keep.end(), false) == keep.end()) return false;
    graph_.restrict_node(v, keep);
    return true;
  }

  bool beats(int v, size_t j, size_t i,
             const std::vector<std::pair<std::vector<int64_t>, size_t>>& tables) const {
    for (const Use& use : nodes_[v].uses) {
      if (use.usage[j] > use.usage[i]) return false;
    }
    int64_t more = nodes_[v].cost[j] - nodes_[v].cost[i];
    for (const auto& [table, n] : tables) {
      int64_t most = -kWall;
      for (size_t t = 0; t < n; ++t) {
        const int64_t of_i = table[i * n + t], of_j = table[j * n + t];
        if (of_i >= kWall) continue;
        if (of_j >= kWall) return false;
        most = std::max(most, of_j - of_i);
      }
      more += most;
    }
    return more <= 0;
  }

  void fold_leaf(int v) {
    const auto [u, e] = *nodes_[v].pairs.begin();
    const std::vector<int64_t> table = graph_.oriented(e, u);
    const size_t ku = nodes_[u].cost.size(), kv = nodes_[v].cost.size();
    std::vector<int> of(ku);
    for (size_t i = 0; i < ku; ++i) {
      int64_t least = kWall;
      for (size_t s = 0; s < kv; ++s) {
        const int64_t c = WorkGraph::sum(table[i * kv + s], nodes_[v].cost[s]);
        if (c < least) least = c, of[i] = static_cast<int>(s);
      }
      nodes_[u].cost[i] = WorkGraph::sum(nodes_[u].cost[i], least);
    }
    record(v, u, of);
    graph_.remove_pair(e);
    nodes_[v].alive = false;
    graph_.prune_node(u);
  }

  void fold_bridge(int v) {
    const auto [a, ea] = *nodes_[v].pairs.begin();
    const auto [b, eb] = *nodes_[v].pairs.rbegin();
    const size_t ka = nodes_[a].cost.size(), kb = nodes_[b].cost.size(), kv = nodes_[v].cost.size();
    if (ka * kb * kv > (size_t{1} << 22)) return;
    const std::vector<int64_t> ta = graph_.oriented(ea, a), tb = graph_.oriented(eb, b);
    Reduction::Follows follows{v, a, b, nodes_[b].problem_size, {}};
    follows.table.resize(static_cast<size_t>(nodes_[a].problem_size) * nodes_[b].problem_size);
    std::vector<int64_t> table(ka * kb, kWall);
    for (size_t i = 0; i < ka; ++i) {
      for (size_t j = 0; j < kb; ++j) {
        int best = 0;
        for (size_t s = 0; s < kv; ++s) {
          const int64_t c =
              WorkGraph::sum(WorkGraph::sum(ta[i * kv + s], tb[j * kv + s]), nodes_[v].cost[s]);
          if (c < table[i * kb + j]) table[i * kb + j] = c, best = static_cast<int>(s);
        }
        follows.table[static_cast<size_t>(nodes_[a].original[i]) * follows.b_size +
                      nodes_[b].original[j]] = nodes_[v].original[best];
      }
    }
    to_.follows_.push_back(std::move(follows));
    graph_.remove_pair(ea);
    graph_.remove_pair(eb);
    nodes_[v].alive = false;
    graph_.add_pair(a, b, table);
  }

  // ---- The model.
  /// Removes a node that has one strategy and no neighbours from the model.
  bool decide(int v) {
    const WorkGraph::Work& work = nodes_[v];
    if (!work.pairs.empty()) return false;
    size_t best = 0;
    if (work.uses.empty()) {
      best = std::min_element(work.cost.begin(), work.cost.end()) - work.cost.begin();
    } else if (work.cost.size() > 1) {
      return false;
    }
    to_.model_.base += work.cost[best];
    for (const Use& use : work.uses) {
      fixed_[use.first] += use.usage[best];
      fixed_[use.last] -= use.usage[best];
    }
    to_.follows_.push_back({v, -1, -1, 1, {work.original[best]}});
    return true;
  }

  void finish() {
    Model& model = to_.model_;
    fixed_.resize(model.points + 1);
    std::vector<int> number(nodes_.size(), -1);
    to_.all_nodes_ = static_cast<int>(nodes_.size());
    for (size_t v = 0; v < nodes_.size(); ++v) {
      WorkGraph::Work& work = nodes_[v];
      if (!work.alive || decide(static_cast<int>(v))) continue;
      number[v] = model.nodes();
      to_.node_.push_back(static_cast<int>(v));
      to_.strategy_.push_back(std::move(work.original));
      model.cost.push_back(std::move(work.cost));
      model.uses.push_back(std::move(work.uses));
    }
    model.incident.resize(model.nodes());
    for (size_t e = 0; e < pairs_.size(); ++e) {
      if (pairs_[e].cost.empty()) continue;
      const int a = number[pairs_[e].a], b = number[pairs_[e].b];
      model.incident[a].push_back(static_cast<int>(model.pairs.size()));
      model.incident[b].push_back(static_cast<int>(model.pairs.size()));
      model.pairs.push_back({a, b, std::move(pairs_[e].cost)});
    }
    int64_t fixed = 0;
    for (int m = 0; m < model.points; ++m) {
      fixed += fixed_[m];
      model.capacity.push_back(model.limit - fixed);
    }
    compress_moments(model);
  }

  Reduction& to_;
  WorkGraph graph_;
  std::vector<WorkGraph::Work>& nodes_ = graph_.nodes;
  std::vector<Pair>& pairs_ = graph_.pairs;
  std::vector<int64_t> fixed_;  // bytes of decided nodes, as a difference array over points
};

Reduction::Reduction(const Problem& problem) { Reducer(problem, *this); }

std::vector<int> Reduction::expand(const std::vector<int>& choice) const {
  std::vector<int> all(all_nodes_, 0);
  for (size_t v = 0; v < node_.size(); ++v) all[node_[v]] = strategy_[v][choice[v]];
  for (size_t i = follows_.size(); i-- > 0;) {
    const Follows& f = follows_[i];
    const size_t row = f.a < 0 ? 0 : static_cast<size_t>(all[f.a]) * f.b_size;
    all[f.v] = f.table[row + (f.b < 0 ? 0 : all[f.b])];
  }
  all.resize(problem_nodes_);
  return all;
}

}  // namespace tessera::solver
