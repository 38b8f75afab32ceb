#include "plan/solver/forest_search.h"

#include <algorithm>
#include <cmath>

namespace tessera::solver {

namespace {

constexpr int64_t kBlockEntries = int64_t{1} << 16;
constexpr int kTries = 5;  // per move, with rising prices where memory is short

}  // namespace

ForestSearch::ForestSearch(const Model& model, std::vector<int> start, uint64_t seed)
    : model_(model),
      choice_(std::move(start)),
      next_(choice_),
      value_(value_of(model, choice_)),
      use_(model.points + 1),
      prices_(model.points),
      extra_(model.points),
      excess_(model.points),
      place_(model.nodes(), -1),
      group_(model.nodes(), -1),
      state_(seed) {
  if (value_.feasible()) best_ = value_.cost;
  for (int v = 0; v < model.nodes(); ++v) add_use(model, v, choice_[v], 1, use_);
  for (int m = 1; m < model.points; ++m) use_[m] += use_[m - 1];
}

uint64_t ForestSearch::random() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

void ForestSearch::set_prices(const std::vector<int64_t>& prices) {
  prices_.assign(prices.begin(), prices.end());
}

int ForestSearch::root_of(int v) {
  while (group_[v] >= 0 && group_[v] != v) v = group_[v] = group_[group_[v]];
  return v;
}

/// Adds v to the picked nodes. For a forest, returns false if that closes a cycle.
bool ForestSearch::try_add(int v, bool block) {
  if (place_[v] >= 0) return false;
  if (block) {
    place_[v] = static_cast<int>(picked_.size());
    picked_.push_back(v);
    return true;
  }
  std::vector<int> roots;
  for (const int e : model_.incident[v]) {
    const int u = model_.pairs[e].a == v ? model_.pairs[e].b : model_.pairs[e].a;
    if (place_[u] >= 0) roots.push_back(root_of(u));
  }
  std::sort(roots.begin(), roots.end());
  if (std::adjacent_find(roots.begin(), roots.end()) != roots.end()) return false;
  place_[v] = static_cast<int>(picked_.size());
  picked_.push_back(v);
  group_[v] = v;
  for (const int r : roots) group_[r] = v;
  return true;
}

/// Picks up to `size` nodes around a random one.
void ForestSearch::grow(size_t size, bool block) {
  for (const int v : picked_) place_[v] = group_[v] = -1;
  picked_.clear();
  std::vector<int> frontier = {static_cast<int>(random() % model_.nodes())};
  while (!frontier.empty() && picked_.size() < size) {
    std::swap(frontier[random() % frontier.size()], frontier.back());
    const int v = frontier.back();
    frontier.pop_back();
    if (!try_add(v, block)) continue;
    const std::vector<int>& near = model_.incident[v];
    const size_t most = std::min<size_t>(near.size(), 32);
    const size_t from = near.size() > most ? random() % near.size() : 0;
    for (size_t i = 0; i < most; ++i) {
      const Pair& pair = model_.pairs[near[(from + i) % near.size()]];
      const int u = pair.a == v ? pair.b : pair.a;
      if (place_[u] < 0) frontier.push_back(u);
    }
    if (frontier.empty()) frontier.push_back(static_cast<int>(random() % model_.nodes()));
  }
  if (block) return thin_block();
  elimination_.reset();
  order_forest();
}

void ForestSearch::thin_block() {
  for (;;) {
    block_ = {};
    forest_.clear();
    for (const int v : picked_) {
      block_.cost.push_back(model_.cost[v]);
      forest_.push_back({v, -1, -1, {}});
    }
    block_.incident.resize(picked_.size());
    for (const int v : picked_) {
      for (const int e : model_.incident[v]) {
        const Pair& pair = model_.pairs[e];
        if (pair.a == v && place_[pair.b] >= 0) {
          block_.pairs.push_back({place_[v], place_[pair.b], pair.cost});
        }
      }
    }
    elimination_ = std::make_unique<Elimination>(block_, kBlockEntries);
    if (elimination_->fits()) return;
    const size_t drop = 1 + picked_.size() / 16;
    for (size_t i = 0; i < drop; ++i) {
      std::swap(picked_[random() % picked_.size()], picked_.back());
      place_[picked_.back()] = -1;
      picked_.pop_back();
    }
    for (size_t i = 0; i < picked_.size(); ++i) place_[picked_[i]] = static_cast<int>(i);
  }
}

void ForestSearch::solve_block() {
  std::vector<std::vector<int64_t>> costs;
  for (const Branch& branch : forest_) {
    std::vector<int64_t>& c = costs.emplace_back();
    for (const double x : branch.cost) {
      c.push_back(static_cast<int64_t>(std::min(x, static_cast<double>(kWall))));
    }
  }
  std::vector<int> best;
  elimination_->run(costs, best);
  for (size_t i = 0; i < picked_.size(); ++i) next_[picked_[i]] = best[i];
}

void ForestSearch::order_forest() {
  forest_.clear();
  std::vector<int> where(picked_.size(), -1);
  for (size_t root = 0; root < picked_.size(); ++root) {
    if (where[root] >= 0) continue;
    where[root] = static_cast<int>(forest_.size());
    forest_.push_back({picked_[root], -1, -1, {}});
    for (size_t i = static_cast<size_t>(where[root]); i < forest_.size(); ++i) {
      const int v = forest_[i].node;
      for (const int e : model_.incident[v]) {
        const int u = model_.pairs[e].a == v ? model_.pairs[e].b : model_.pairs[e].a;
        if (place_[u] < 0 || where[place_[u]] >= 0) continue;
        where[place_[u]] = static_cast<int>(forest_.size());
        forest_.push_back({u, static_cast<int>(i), e, {}});
      }
    }
  }
}

/// The cost of each strategy with its fixed neighbours and the price of its memory.
void ForestSearch::price(const std::vector<double>& before) {
  for (Branch& branch : forest_) {
    const int v = branch.node;
    branch.cost.assign(model_.cost[v].begin(), model_.cost[v].end());
    for (const Use& use : model_.uses[v]) {
      const double price =
          (before[use.last] - before[use.first]) / static_cast<double>(model_.limit);
      if (price == 0) continue;
      for (size_t s = 0; s < branch.cost.size(); ++s) {
        branch.cost[s] += price * static_cast<double>(use.usage[s]);
      }
    }
    for (const int e : model_.incident[v]) {
      const Pair& pair = model_.pairs[e];
      const int u = pair.a == v ? pair.b : pair.a;
      if (place_[u] >= 0) continue;
      const size_t kb = static_cast<size_t>(model_.size(pair.b));
      const int64_t* from =
          pair.cost.data() + (pair.a == v ? choice_[u] : static_cast<size_t>(choice_[u]) * kb);
      const size_t stride = pair.a == v ? kb : 1;
      for (size_t s = 0; s < branch.cost.size(); ++s) {
        branch.cost[s] += static_cast<double>(from[s * stride]);
      }
    }
    if (slack_ == 0) continue;
    for (double& c : branch.cost) c *= 1 + slack_ * static_cast<double>(random() % 4096) / 512;
  }
}

/// Finds the best choice for the forest; sets next_.
void ForestSearch::solve() {
  for (size_t i = forest_.size(); i-- > 0;) {
    const Branch& child = forest_[i];
    if (child.parent < 0) continue;
    std::vector<double>& to = forest_[child.parent].cost;
    const Pair& pair = model_.pairs[child.pair];
    const size_t kb = static_cast<size_t>(model_.size(pair.b));
    const size_t row = pair.a == child.node ? 1 : kb, step = pair.a == child.node ? kb : 1;
    for (size_t t = 0; t < to.size(); ++t) {
      const int64_t* c = pair.cost.data() + t * row;
      double least = child.cost[0] + static_cast<double>(c[0]);
      for (size_t s = 1; s < child.cost.size(); ++s) {
        least = std::min(least, child.cost[s] + static_cast<double>(c[s * step]));
      }
      to[t] += least;
    }
  }
  for (const Branch& branch : forest_) {
    size_t best = 0;
    double least = 0;
    for (size_t s = 0; s < branch.cost.size(); ++s) {
      double c = branch.cost[s];
      if (branch.parent >= 0) {
        const Pair& pair = model_.pairs[branch.pair];
        const size_t kb = static_cast<size_t>(model_.size(pair.b));
        const size_t t = static_cast<size_t>(next_[forest_[branch.parent].node]);
        c += static_cast<double>(pair.cost[pair.a == branch.node ? s * kb + t : t * kb + s]);
      }
      if (s == 0 || c < least) least = c, best = s;
    }
    next_[branch.node] = static_cast<int>(best);
  }
}

bool ForestSearch::accept() {
  Value value = value_;
  std::vector<int64_t> change(model_.points + 1);
  bool moved = false;
  const auto add = [&](int64_t cost, int sign) {
    if (cost >= kWall) {
      value.forbidden += sign;
    } else {
      value.cost += sign * cost;
    }
  };
  for (const int v : picked_) {
    if (next_[v] == choice_[v]) continue;
    moved = true;
    add(model_.cost[v][choice_[v]], -1);
    add(model_.cost[v][next_[v]], 1);
    add_use(model_, v, choice_[v], -1, change);
    add_use(model_, v, next_[v], 1, change);
    for (const int e : model_.incident[v]) {
      const Pair& pair = model_.pairs[e];
      const int u = pair.a == v ? pair.b : pair.a;
      if (next_[u] != choice_[u] && u < v) continue;
      const size_t kb = static_cast<size_t>(model_.size(pair.b));
      add(pair.cost[static_cast<size_t>(choice_[pair.a]) * kb + choice_[pair.b]], -1);
      add(pair.cost[static_cast<size_t>(next_[pair.a]) * kb + next_[pair.b]], 1);
    }
  }
  if (!moved) return true;
  value.excess = 0;
  int64_t now = 0;
  for (int m = 0; m < model_.points; ++m) {
    now += change[m];
    excess_[m] = std::max<int64_t>(0, use_[m] + now - model_.capacity[m]);
    value.excess += excess_[m];
  }
  const bool near = value.feasible() && value_.feasible() &&
                    static_cast<double>(value.cost) <= (1 + slack_) * static_cast<double>(best_);
  if (value_.better_than(value) && !near) return false;
  now = 0;
  for (int m = 0; m < model_.points; ++m) use_[m] += now += change[m];
  for (const int v : picked_) choice_[v] = next_[v];
  value_ = value;
  if (value.feasible()) best_ = std::min(best_, value.cost);
  return true;
}

bool ForestSearch::move(double slack) {
  slack_ = random() % 2 == 0 ? 0 : slack;
  const double most = std::log2(static_cast<double>(std::max(4, model_.nodes())));
  const double bits = 1 + (most - 1) * static_cast<double>(random() % 1024) / 1023;
  const bool block = random() % 4 == 0;
  grow(static_cast<size_t>(std::exp2(block ? std::min(bits, 8.0) : bits)), block);
  const Value old = value_;
  double step = static_cast<double>(std::max<int64_t>(old.cost, 1024)) / 256;
  if (old.excess == 0) std::fill(extra_.begin(), extra_.end(), 0);
  for (int t = 0; t < kTries; ++t) {
    std::vector<double> before(model_.points + 1);
    for (int m = 0; m < model_.points; ++m) before[m + 1] = before[m] + prices_[m] + extra_[m];
    price(before);
    elimination_ ? solve_block() : solve();
    if (accept()) break;
    const int64_t worst = excess_.empty() ? 0 : *std::max_element(excess_.begin(), excess_.end());
    if (worst == 0) break;
    for (int m = 0; m < model_.points; ++m) {
      extra_[m] += step * static_cast<double>(excess_[m]) / static_cast<double>(worst);
    }
    step *= 4;
  }
  for (const int v : picked_) next_[v] = choice_[v];
  return value_.better_than(old);
}

}  // namespace tessera::solver
