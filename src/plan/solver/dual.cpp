// Sequential tree-reweighted message passing in integers. A pass visits the nodes in order. A node
// gives equal shares of its cost to the tables of its pairs with later nodes. Each of these tables
// passes its minimum over the node on to the later node, for each of that node's strategies. After
// a pass the minimum of every table is 0, and the bound is the sum of the nodes' minima.
#include "plan/solver/dual.h"

#include <algorithm>
#include <cmath>

namespace tessera::solver {

namespace {

constexpr int64_t kMostForbidden = 32 * kWall;  // of a strategy with many neighbours

int64_t floor_divide(int64_t a, int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

}  // namespace

DualAscent::DualAscent(const Model& model)
    : model_(model),
      costs_(model.cost),
      barred_(model.nodes()),
      prices_(model.points),
      choice_(model.nodes()) {
  for (const Pair& pair : model.pairs) {
    to_a_.emplace_back(model.size(pair.a));
    to_b_.emplace_back(model.size(pair.b));
  }
}

std::vector<int64_t> DualAscent::potential(int node) const {
  std::vector<int64_t> p = costs_[node];
  for (const int e : model_.incident[node]) {
    const std::vector<int64_t>& m = model_.pairs[e].a == node ? to_a_[e] : to_b_[e];
    for (size_t s = 0; s < p.size(); ++s) p[s] += m[s];
  }
  return p;
}

/// The message over pair e to the node that is not `from`: min over from's strategies.
void DualAscent::send(int e, int from) {
  const Pair& pair = model_.pairs[e];
  const size_t ka = to_a_[e].size(), kb = to_b_[e].size();
  if (pair.a == from) {
    std::vector<int64_t>& to = to_b_[e];
    std::fill(to.begin(), to.end(), 2 * kWall);
    for (size_t i = 0; i < ka; ++i) {
      const int64_t mine = to_a_[e][i];
      const int64_t* row = pair.cost.data() + i * kb;
      for (size_t j = 0; j < kb; ++j) to[j] = std::min(to[j], row[j] - mine);
    }
    return;
  }
  for (size_t i = 0; i < ka; ++i) {
    int64_t least = 2 * kWall;
    const int64_t* row = pair.cost.data() + i * kb;
    for (size_t j = 0; j < kb; ++j) least = std::min(least, row[j] - to_b_[e][j]);
    to_a_[e][i] = least;
  }
}

void DualAscent::visit(int v) {
  const std::vector<int64_t> p = potential(v);
  std::vector<int64_t> decode = costs_[v];
  int64_t ahead = 0;
  for (const int e : model_.incident[v]) {
    const Pair& pair = model_.pairs[e];
    const int u = pair.a == v ? pair.b : pair.a;
    const bool is_ahead = forwards_ ? u > v : u < v;
    ahead += is_ahead;
    const size_t kb = to_b_[e].size();
    for (size_t s = 0; s < decode.size(); ++s) {
      if (is_ahead) {
        decode[s] += message_to(e, v)[s];
      } else {
        const int64_t both = pair.a == v ? pair.cost[s * kb + choice_[u]]
                                         : pair.cost[static_cast<size_t>(choice_[u]) * kb + s];
        decode[s] = std::min(decode[s] + both, kMostForbidden);
      }
    }
  }
  choice_[v] = static_cast<int>(std::min_element(decode.begin(), decode.end()) - decode.begin());
  if (ahead == 0) return;
  const int64_t behind = static_cast<int64_t>(model_.incident[v].size()) - ahead;
  const int64_t parts = std::max(ahead, behind);
  std::vector<int64_t> share(p.size());
  for (size_t s = 0; s < p.size(); ++s) share[s] = floor_divide(p[s], parts);
  for (const int e : model_.incident[v]) {
    const Pair& pair = model_.pairs[e];
    const int u = pair.a == v ? pair.b : pair.a;
    if (forwards_ ? u < v : u > v) continue;
    std::vector<int64_t>& mine = message_to(e, v);
    for (size_t s = 0; s < mine.size(); ++s) mine[s] -= share[s];
    send(e, v);
  }
}

int64_t DualAscent::bound() const {
  __int128 sum = model_.base - price_of_capacity(model_, prices_);
  for (int v = 0; v < model_.nodes(); ++v) {
    const std::vector<int64_t> p = potential(v);
    sum += *std::min_element(p.begin(), p.end());
  }
  return static_cast<int64_t>(std::min<__int128>(sum, kWall));
}

int64_t DualAscent::pass() {
  const int n = model_.nodes();
  for (int i = 0; i < n; ++i) visit(forwards_ ? i : n - 1 - i);
  forwards_ = !forwards_;
  return last_bound_ = bound();
}

void DualAscent::set_prices(std::vector<int64_t> prices) {
  prices_ = std::move(prices);
  costs_ = priced_costs(model_, prices_);
  for (int v = 0; v < model_.nodes(); ++v) {
    for (size_t s = 0; s < barred_[v].size(); ++s) costs_[v][s] += barred_[v][s] ? kMostCost : 0;
  }
}

void DualAscent::bar(int node, const std::vector<bool>& strategies) {
  std::vector<bool>& barred = barred_[node];
  barred.resize(strategies.size());
  for (size_t s = 0; s < strategies.size(); ++s) {
    if (!strategies[s] || barred[s]) continue;
    barred[s] = true;
    costs_[node][s] += kMostCost;
  }
}

int64_t DualAscent::price_of(int node, int s) const {
  return costs_[node][s] - model_.cost[node][s] - (is_barred(node, s) ? kMostCost : 0);
}

void DualAscent::move_prices(double step, int64_t target) {
  std::vector<int64_t> use(model_.points + 1);
  for (int v = 0; v < model_.nodes(); ++v) add_use(model_, v, choice_[v], 1, use);
  std::vector<double> slope(model_.points);
  double square = 0;
  int64_t now = 0;
  for (int m = 0; m < model_.points; ++m) {
    now += use[m];
    slope[m] = static_cast<double>(now - model_.capacity[m]) / static_cast<double>(model_.limit);
    if (slope[m] < 0 && prices_[m] == 0) slope[m] = 0;
    square += slope[m] * slope[m];
  }
  if (square == 0) return;
  const double distance = static_cast<double>(std::max<int64_t>(target - last_bound_, 1));
  std::vector<int64_t> prices = prices_;
  for (int m = 0; m < model_.points; ++m) {
    const double moved = static_cast<double>(prices[m]) + step * distance * slope[m] / square;
    prices[m] = static_cast<int64_t>(std::clamp(moved, 0.0, static_cast<double>(kMostCost)));
  }
  set_prices(std::move(prices));
}

}  // namespace tessera::solver
