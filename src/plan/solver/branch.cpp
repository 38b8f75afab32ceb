#include "plan/solver/branch.h"

#include <algorithm>
#include <limits>

namespace tessera::solver {

namespace {

constexpr int kPasses = 40;
constexpr int kPatience = 4;                      // passes without a better bound
constexpr int64_t kMostBytes = int64_t{1} << 30;  // of all subproblems

int64_t bytes_of(const Model& model) {
  int64_t entries = model.points;
  for (int v = 0; v < model.nodes(); ++v) entries += 2 * model.size(v);
  for (const Pair& pair : model.pairs) entries += model.size(pair.a) + model.size(pair.b);
  return 8 * entries;
}

}  // namespace

Branching::Branching(const Model& model, const DualAscent& root, int64_t bound)
    : model_(model), bound_(bound) {
  open_.push({bound, std::make_shared<DualAscent>(root)});
}

/// Runs some passes and moves the prices between them. Leaves the dual at the prices of the best
/// bound and returns that bound.
int64_t Branching::raise(DualAscent& dual, int64_t below, Chosen& chosen,
                         const std::function<void(const std::vector<int>&)>& offer) {
  int64_t best = std::numeric_limits<int64_t>::min();
  std::vector<int64_t> prices = dual.prices();
  double step = 0.2;
  int stale = 0;
  for (int i = 0; i < kPasses && best < below; ++i) {
    const int64_t bound = dual.pass();
    ++chosen.passes;
    for (int v = 0; v < model_.nodes(); ++v) {
      const auto price = static_cast<double>(dual.price_of(v, dual.choice()[v]));
      chosen.sum[v] += price;
      chosen.squares[v] += price * price;
    }
    offer(dual.choice());
    if (bound > best) {
      best = bound;
      prices = dual.prices();
      stale = 0;
    } else if (++stale == kPatience) {
      stale = 0;
      step *= 0.5;
      dual.set_prices(prices);
      continue;
    }
    dual.move_prices(step, std::min(below, best + std::abs(best) / 20));
  }
  dual.set_prices(prices);
  return best;
}

/// Picks the node to split: the one whose chosen strategies differed most in the price of their
/// memory. `much`: its strategies whose price is above the mean, or above the middle if the mean
/// separates none.
bool Branching::choose(const DualAscent& dual, const Chosen& chosen, int& node,
                       std::vector<bool>& much) const {
  double most = 0;
  node = -1;
  for (int v = 0; v < model_.nodes(); ++v) {
    const double mean = chosen.sum[v] / chosen.passes;
    const double spread = chosen.squares[v] / chosen.passes - mean * mean;
    if (spread <= most) continue;
    int64_t low = std::numeric_limits<int64_t>::max(), high = 0;
    for (int s = 0; s < model_.size(v); ++s) {
      if (dual.is_barred(v, s)) continue;
      low = std::min(low, dual.price_of(v, s));
      high = std::max(high, dual.price_of(v, s));
    }
    if (low >= high) continue;
    const bool separates = static_cast<double>(low) <= mean && mean < static_cast<double>(high);
    const auto middle = separates ? static_cast<int64_t>(mean) : low + (high - low) / 2;
    most = spread;
    node = v;
    much.resize(static_cast<size_t>(model_.size(v)));
    for (int s = 0; s < model_.size(v); ++s) much[s] = dual.price_of(v, s) > middle;
  }
  return node >= 0 || choose_nearest(dual, node, much);
}

/// Picks the node whose two best strategies are closest by the dual. `much`: all but the best.
bool Branching::choose_nearest(const DualAscent& dual, int& node, std::vector<bool>& much) const {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int v = 0; v < model_.nodes(); ++v) {
    const std::vector<int64_t> p = dual.potential(v);
    int best = -1, second = -1;
    for (int s = 0; s < model_.size(v); ++s) {
      if (dual.is_barred(v, s)) continue;
      if (best < 0 || p[s] < p[best]) {
        second = best;
        best = s;
      } else if (second < 0 || p[s] < p[second]) {
        second = s;
      }
    }
    if (second < 0 || p[second] - p[best] >= least) continue;
    least = p[second] - p[best];
    node = v;
    much.assign(p.size(), true);
    much[static_cast<size_t>(best)] = false;
  }
  return node >= 0;
}

bool Branching::split(int64_t below, const std::function<void(const std::vector<int>&)>& offer) {
  if (open_.empty() || bytes_ > kMostBytes) return false;
  Subproblem whole = open_.top();
  open_.pop();
  const auto nodes = static_cast<size_t>(model_.nodes());
  Chosen chosen{std::vector<double>(nodes), std::vector<double>(nodes), 0};
  whole.bound = std::max(whole.bound, raise(*whole.dual, below, chosen, offer));
  int node = -1;
  std::vector<bool> barred;
  // Only one choice is left, and it was offered.
  if (whole.bound < below && !choose(*whole.dual, chosen, node, barred)) whole.bound = below;
  bytes_ -= bytes_of(model_);
  for (int half = 0; half < 2 && whole.bound < below; ++half) {
    barred.flip();
    Subproblem child{whole.bound, std::make_shared<DualAscent>(*whole.dual)};
    child.dual->bar(node, barred);
    bytes_ += bytes_of(model_);
    child.bound = std::max(child.bound, child.dual->pass());
    if (child.bound < below) open_.push(std::move(child));
  }
  bound_ = std::max(bound_, open_.empty() ? below : std::min(below, open_.top().bound));
  return !open_.empty();
}

}  // namespace tessera::solver
