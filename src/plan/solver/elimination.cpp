// Bucket elimination. A bucket sends a message, a table over its separator, to the bucket of the
// separator's node that is eliminated first; so the buckets form a forest. On the way up a table
// holds the least cost of everything below, on the way down that of the rest. Their sum is the
// least cost for each combination of a clique.
#include "plan/solver/elimination.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace tessera::solver {

namespace {

/// A greedy order. `by_fill`: next is the node whose elimination adds the fewest pairs, weighted by
/// the logarithm of table sizes; otherwise the node with the smallest table.
class Order {
 public:
  Order(const Model& model, bool by_fill) : by_fill_(by_fill), near_(model.nodes()) {
    for (int v = 0; v < model.nodes(); ++v) weight_.push_back(std::log2(model.size(v)));
    for (const Pair& pair : model.pairs) {
      near_[pair.a].insert(pair.b);
      near_[pair.b].insert(pair.a);
    }
  }

  /// Returns the entries of all tables, or -1 if more than `limit`.
  int64_t run(int64_t limit) {
    std::set<std::pair<double, int>> queue;
    std::vector<double> score(near_.size());
    for (int v = 0; v < static_cast<int>(near_.size()); ++v) {
      queue.insert({score[v] = value(v), v});
    }
    double total = 0;
    while (!queue.empty()) {
      const int v = queue.begin()->second;
      queue.erase(queue.begin());
      total += std::exp2(size(v));
      if (total > static_cast<double>(limit)) return -1;
      order.push_back(v);
      for (const int u : eliminate(v)) {
        queue.erase({score[u], u});
        queue.insert({score[u] = value(u), u});
      }
    }
    return std::llround(total);
  }

  std::vector<int> order;

 private:
  double size(int v) const {
    double bits = weight_[v];
    for (const int u : near_[v]) bits += weight_[u];
    return bits;
  }
  double value(int v) const {
    if (!by_fill_) return size(v);
    double fill = 0;
    for (auto a = near_[v].begin(); a != near_[v].end(); ++a) {
      for (auto b = std::next(a); b != near_[v].end(); ++b) {
        if (!near_[*a].count(*b)) fill += weight_[*a] * weight_[*b];
      }
    }
    return fill + 1e-3 * size(v);
  }
  /// Returns the nodes whose score may have changed.
  std::set<int> eliminate(int v) {
    const std::set<int> around = std::move(near_[v]);
    near_[v].clear();
    std::set<int> changed = around;
    for (const int u : around) {
      near_[u].erase(v);
      near_[u].insert(around.begin(), around.end());
      near_[u].erase(u);
      if (by_fill_) changed.insert(near_[u].begin(), near_[u].end());
    }
    return changed;
  }
  bool by_fill_;
  std::vector<std::set<int>> near_;
  std::vector<double> weight_;
};

std::vector<int> separator_of(const Bucket& bucket) {
  return {bucket.clique.begin(), bucket.clique.end() - 1};
}

size_t entries_of(const Model& model, const std::vector<int>& nodes) {
  size_t n = 1;
  for (const int v : nodes) n *= static_cast<size_t>(model.size(v));
  return n;
}

int64_t sum(int64_t a, int64_t b) { return std::min(a + b, kWall); }

}  // namespace

Walk::Walk(const Model& model, const std::vector<int>& clique, const std::vector<int>& part)
    : index_(clique.size()), strides_(clique.size()) {
  for (const int v : clique) sizes_.push_back(model.size(v));
  size_t stride = 1;
  for (size_t i = part.size(); i-- > 0;) {
    const size_t at = std::find(clique.begin(), clique.end(), part[i]) - clique.begin();
    strides_[at] = stride;
    stride *= static_cast<size_t>(model.size(part[i]));
  }
}

Elimination::Elimination(const Model& model, int64_t entries) : model_(model) {
  Order by_size(model, false), by_fill(model, true);
  total_ = by_size.run(entries);
  const bool small = model.nodes() <= 4000;
  const int64_t filled = small ? by_fill.run(total_ < 0 ? entries : total_ - 1) : -1;
  if (total_ < 0 && filled < 0) return;
  fits_ = true;
  build(filled >= 0 ? by_fill.order : by_size.order);
  if (filled >= 0) total_ = filled;
}

void Elimination::build(const std::vector<int>& order) {
  std::vector<int> position(model_.nodes());
  for (size_t i = 0; i < order.size(); ++i) position[order[i]] = static_cast<int>(i);
  buckets_.resize(order.size());
  std::vector<std::set<int>> separators(order.size());  // by position
  for (size_t e = 0; e < model_.pairs.size(); ++e) {
    const int a = position[model_.pairs[e].a], b = position[model_.pairs[e].b];
    buckets_[std::min(a, b)].pairs.push_back(static_cast<int>(e));
    separators[std::min(a, b)].insert(std::max(a, b));
  }
  for (size_t i = 0; i < order.size(); ++i) {
    Bucket& bucket = buckets_[i];
    bucket.node = order[i];
    for (const int p : separators[i]) bucket.clique.push_back(order[p]);
    bucket.clique.push_back(bucket.node);
    if (separators[i].empty()) continue;
    bucket.parent = *separators[i].begin();
    buckets_[bucket.parent].children.push_back(static_cast<int>(i));
    separators[i].erase(separators[i].begin());
    separators[bucket.parent].insert(separators[i].begin(), separators[i].end());
  }
}

void Elimination::fill(Bucket& bucket, const std::vector<int64_t>& cost) {
  bucket.table.assign(entries_of(model_, bucket.clique), 0);
  const auto add = [&](const std::vector<int>& nodes, const std::vector<int64_t>& from) {
    Walk walk(model_, bucket.clique, nodes);
    for (int64_t& c : bucket.table) {
      c = sum(c, from[walk.at()]);
      walk.next();
    }
  };
  add({bucket.node}, cost);
  for (const int e : bucket.pairs) {
    add({model_.pairs[e].a, model_.pairs[e].b}, model_.pairs[e].cost);
  }
  for (const int c : bucket.children) add(separator_of(buckets_[c]), buckets_[c].up);
  const size_t k = static_cast<size_t>(model_.size(bucket.node));
  bucket.up.resize(bucket.table.size() / k);
  for (size_t s = 0; s < bucket.up.size(); ++s) {
    bucket.up[s] =
        *std::min_element(bucket.table.begin() + s * k, bucket.table.begin() + (s + 1) * k);
  }
}

int64_t Elimination::run(const std::vector<std::vector<int64_t>>& costs, std::vector<int>& choice) {
  int64_t total = 0;
  for (Bucket& bucket : buckets_) {
    fill(bucket, costs[bucket.node]);
    if (bucket.parent < 0) total = sum(total, bucket.up[0]);
  }
  choice.assign(model_.nodes(), 0);
  for (size_t i = buckets_.size(); i-- > 0;) {
    const Bucket& bucket = buckets_[i];
    size_t row = 0;
    for (const int v : bucket.clique)
      row = row * model_.size(v) + (v == bucket.node ? 0 : choice[v]);
    const auto begin = bucket.table.begin() + row;
    choice[bucket.node] =
        static_cast<int>(std::min_element(begin, begin + model_.size(bucket.node)) - begin);
  }
  return total;
}

std::vector<std::vector<int64_t>> Elimination::marginals() {
  std::vector<std::vector<int64_t>> result(model_.nodes());
  int64_t total = 0;
  for (const Bucket& bucket : buckets_) {
    if (bucket.parent < 0) total = sum(total, bucket.up[0]);
  }
  for (size_t i = buckets_.size(); i-- > 0;) {
    Bucket& bucket = buckets_[i];
    if (bucket.parent < 0) bucket.down = {total >= kWall ? kWall : total - bucket.up[0]};
    const size_t k = static_cast<size_t>(model_.size(bucket.node));
    std::vector<int64_t>& mine = result[bucket.node];
    mine.assign(k, kWall);
    std::vector<int64_t> belief(bucket.table.size());
    for (size_t at = 0; at < belief.size(); ++at) {
      belief[at] = sum(bucket.table[at], bucket.down[at / k]);
      mine[at % k] = std::min(mine[at % k], belief[at]);
    }
    for (const int c : bucket.children) {
      Bucket& child = buckets_[c];
      child.down.assign(child.up.size(), kWall);
      Walk walk(model_, bucket.clique, separator_of(child));
      for (const int64_t b : belief) {
        child.down[walk.at()] = std::min(child.down[walk.at()], b);
        walk.next();
      }
      for (size_t s = 0; s < child.up.size(); ++s) {
        if (child.down[s] < kWall) child.down[s] -= child.up[s];
      }
    }
  }
  return result;
}

}  // namespace tessera::solver
