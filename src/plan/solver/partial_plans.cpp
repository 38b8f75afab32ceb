// Elimination whose messages hold, for each combination of a separator, a list of partial plans
// (labels: cost, bytes by point) instead of one cost. A partial plan is dropped if another is no
// worse in cost and at every point, if its best completion by the priced elimination is not below
// the best known plan, or if it does not fit together with the least bytes of everything else.
#include "plan/solver/partial_plans.h"

#include <algorithm>

namespace tessera::solver {

namespace {

struct Label {
  int64_t cost = 0, priced = 0;
  int trace = -1;
  std::vector<int64_t> bytes;  // by point
};
using Labels = std::vector<Label>;

/// How a label was built: from two others, or from a node's strategy.
struct Trace {
  int a = -1, b = -1, node = -1, strategy = 0;
};

class Search {
 public:
  Search(const Model& model, const Elimination& elimination, const std::vector<int64_t>& prices,
         int64_t below, int64_t labels)
      : model_(model),
        buckets_(elimination.buckets()),
        costs_(priced_costs(model, prices)),
        below_(below - model.base),
        below_priced_(below_ + price_of_capacity(model, prices)),
        limit_(labels) {
    least_.resize(model.nodes());
    all_.assign(model.points, 0);
    for (int v = 0; v < model.nodes(); ++v) {
      least_[v] = bytes_of(v, 0);
      for (int s = 1; s < model.size(v); ++s) {
        const std::vector<int64_t> bytes = bytes_of(v, s);
        for (int m = 0; m < model.points; ++m) least_[v][m] = std::min(least_[v][m], bytes[m]);
      }
      for (int m = 0; m < model.points; ++m) all_[m] += least_[v][m];
    }
  }

  PartialPlans run() {
    lists_.resize(buckets_.size());
    below_bucket_.resize(buckets_.size());
    for (size_t i = 0; i < buckets_.size(); ++i) {
      if (!visit(static_cast<int>(i))) return {};
    }
    std::vector<int64_t> rest = all_;
    int64_t remaining = 0;
    for (const Bucket& b : buckets_) remaining += b.parent < 0 ? b.up[0] : 0;
    Labels now = {start()};
    for (size_t i = 0; i < buckets_.size(); ++i) {
      if (buckets_[i].parent >= 0) continue;
      remaining -= buckets_[i].up[0];
      subtract(rest, below_bucket_[i]);
      now = cross(now, lists_[i][0], remaining, rest);
      keep_best(now);
      if (over()) return {};
    }
    PartialPlans result{true, {}};
    const Label* best = nullptr;
    for (const Label& label : now) {
      if (label.cost < below_ && (!best || label.cost < best->cost)) best = &label;
    }
    if (best) {
      result.choice.assign(model_.nodes(), 0);
      unroll(best->trace, result.choice);
    }
    return result;
  }

 private:
  bool over() const { return static_cast<int64_t>(traces_.size()) > limit_; }

  Label start() const { return {0, 0, -1, std::vector<int64_t>(model_.points)}; }

  std::vector<int64_t> bytes_of(int v, int s) const {
    std::vector<int64_t> bytes(model_.points + 1);
    add_use(model_, v, s, 1, bytes);
    for (int m = 1; m < model_.points; ++m) bytes[m] += bytes[m - 1];
    bytes.resize(model_.points);
    return bytes;
  }

  static void subtract(std::vector<int64_t>& from, const std::vector<int64_t>& what) {
    for (size_t m = 0; m < from.size(); ++m) from[m] -= what[m];
  }

  /// Fills the lists of bucket i. Returns false if there are too many labels.
  bool visit(int i) {
    const Bucket& bucket = buckets_[i];
    below_bucket_[i] = least_[bucket.node];
    for (const int c : bucket.children) {
      for (int m = 0; m < model_.points; ++m) below_bucket_[i][m] += below_bucket_[c][m];
    }
    lists_[i].resize(bucket.up.size());
    std::vector<Walk> pairs, children;
    for (const int e : bucket.pairs) {
      pairs.emplace_back(model_, bucket.clique,
                         std::vector<int>{model_.pairs[e].a, model_.pairs[e].b});
    }
    for (const int c : bucket.children) {
      const std::vector<int>& clique = buckets_[c].clique;
      children.emplace_back(model_, bucket.clique,
                            std::vector<int>(clique.begin(), clique.end() - 1));
    }
    const size_t k = static_cast<size_t>(model_.size(bucket.node));
    for (size_t at = 0; at < bucket.table.size(); ++at) {
      if (bucket.table[at] < kWall && bucket.down[at / k] < kWall) {
        extend(i, at, static_cast<int>(at % k), pairs, children);
        if (over()) return false;
      }
      if (at % k == k - 1) keep_best(lists_[i][at / k]);
      for (Walk& w : pairs) w.next();
      for (Walk& w : children) w.next();
    }
    for (const int c : bucket.children) lists_[c] = {};
    return true;
  }

  /// Adds the labels of entry `at` of the clique's table, in which the node has strategy s.
  void extend(int i, size_t at, int s, const std::vector<Walk>& pairs,
              const std::vector<Walk>& children) {
    const Bucket& bucket = buckets_[i];
    const int v = bucket.node;
    Label label{model_.cost[v][s], costs_[v][s], -1, bytes_of(v, s)};
    for (size_t p = 0; p < pairs.size(); ++p) {
      const int64_t c = model_.pairs[bucket.pairs[p]].cost[pairs[p].at()];
      label.cost += c;
      label.priced += c;
    }
    int64_t remaining = bucket.down[at / static_cast<size_t>(model_.size(v))];
    std::vector<int64_t> rest = all_;
    subtract(rest, least_[v]);
    for (size_t c = 0; c < children.size(); ++c) {
      remaining += buckets_[bucket.children[c]].up[children[c].at()];
    }
    if (!is_open(label, remaining, rest)) return;
    traces_.push_back({-1, -1, v, s});
    label.trace = static_cast<int>(traces_.size()) - 1;
    Labels now = {std::move(label)};
    for (size_t c = 0; c < children.size() && !now.empty(); ++c) {
      const int child = bucket.children[c];
      remaining -= buckets_[child].up[children[c].at()];
      subtract(rest, below_bucket_[child]);
      now = cross(now, lists_[child][children[c].at()], remaining, rest);
      keep_best(now);
      if (over()) return;
    }
    Labels& list = lists_[i][at / static_cast<size_t>(model_.size(v))];
    std::move(now.begin(), now.end(), std::back_inserter(list));
  }

  bool is_open(const Label& label, int64_t remaining, const std::vector<int64_t>& rest) const {
    if (label.priced + remaining >= below_priced_) return false;
    for (int m = 0; m < model_.points; ++m) {
      if (label.bytes[m] + rest[m] > model_.capacity[m]) return false;
    }
    return true;
  }

  Labels cross(const Labels& a, const Labels& b, int64_t remaining,
               const std::vector<int64_t>& rest) {
    Labels result;
    for (const Label& x : a) {
      for (const Label& y : b) {
        Label both{x.cost + y.cost, x.priced + y.priced, -1, x.bytes};
        for (int m = 0; m < model_.points; ++m) both.bytes[m] += y.bytes[m];
        if (!is_open(both, remaining, rest)) continue;
        traces_.push_back({x.trace, y.trace, -1, 0});
        both.trace = static_cast<int>(traces_.size()) - 1;
        result.push_back(std::move(both));
        if (over()) return result;
      }
    }
    return result;
  }

  /// Drops labels that another label dominates (cost and bytes at every point).
  static void keep_best(Labels& labels) {
    std::sort(labels.begin(), labels.end(), [](const Label& a, const Label& b) {
      if (a.bytes != b.bytes) return a.bytes < b.bytes;
      return a.cost != b.cost ? a.cost < b.cost : a.trace < b.trace;
    });
    Labels kept;
    const bool single = !labels.empty() && labels[0].bytes.size() <= 1;
    for (Label& label : labels) {
      const auto beats = [&](const Label& other) {
        if (other.cost > label.cost) return false;
        for (size_t m = 0; m < label.bytes.size(); ++m) {
          if (other.bytes[m] > label.bytes[m]) return false;
        }
        return true;
      };
      const bool beaten = single ? !kept.empty() && beats(kept.back())
                                 : std::any_of(kept.begin(), kept.end(), beats);
      if (!beaten) kept.push_back(std::move(label));
    }
    labels = std::move(kept);
  }

  void unroll(int trace, std::vector<int>& choice) const {
    std::vector<int> open = {trace};
    while (!open.empty()) {
      const int t = open.back();
      open.pop_back();
      if (t < 0) continue;
      if (traces_[t].node >= 0) choice[traces_[t].node] = traces_[t].strategy;
      open.push_back(traces_[t].a);
      open.push_back(traces_[t].b);
    }
  }

  const Model& model_;
  const std::vector<Bucket>& buckets_;
  std::vector<std::vector<int64_t>> costs_;
  int64_t below_, below_priced_, limit_;
  std::vector<std::vector<int64_t>> least_;         // by node and point
  std::vector<int64_t> all_;                        // sum of least_
  std::vector<std::vector<int64_t>> below_bucket_;  // by bucket: least_ of it and all below
  std::vector<std::vector<Labels>> lists_;          // by bucket and entry of its separator
  std::vector<Trace> traces_;
};

}  // namespace

PartialPlans search_partial_plans(const Model& model, const Elimination& elimination,
                                  const std::vector<int64_t>& prices, int64_t below,
                                  int64_t labels) {
  return Search(model, elimination, prices, below, labels).run();
}

}  // namespace tessera::solver
