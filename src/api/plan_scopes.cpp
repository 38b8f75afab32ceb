// Scoped rules: the plans that come nearest get rules for segments of the model, one after the
// other, each time that which is best; a rule that does not pay may still do so with a second one.
// What they save of memory is then spent: fewer microbatches, less made again, less in parts.
#include <algorithm>
#include <cmath>

#include "api/plan_search.h"
#include "plan/segments.h"

namespace tessera {

namespace {

constexpr size_t kPlans = 4, kRounds = 3;
constexpr size_t kTried = 16;     ///< rules, of each round
constexpr double kNear = 1.2;     ///< of the best plan's time
constexpr double kWorth = 0.005;  ///< of a plan's time, or memory, for a rule
constexpr double kShare = 0.15;   ///< of the time of the search, in addition
constexpr double kRest = 0.3;     ///< of it, if the search leaves as much

std::string joined(const std::string& rules, const std::string& rule) {
  return rules.empty() ? rule : rules + ";" + rule;
}

void scale_times(PricedPlan& p, double factor) {
  for (double* seconds : {&p.seconds, &p.compute, &p.slowed, &p.exposed, &p.update})
    *seconds *= factor;
  for (PlanAxes& axes : p.by_axes) {
    axes.seconds *= factor;
    axes.exposed *= factor;
  }
}

}  // namespace

/// What fits before what does not, then time; of what does not fit, memory.
std::pair<bool, double> PlanSearch::order_of(const PricedPlan& p) const {
  return {!fits(p), fits(p) ? p.seconds : static_cast<double>(p.memory())};
}

/// By so much that a rule is worth it.
bool PlanSearch::is_better(const PricedPlan& x, const PricedPlan& y) const {
  const auto [x_fails, x_cost] = order_of(x);
  const auto [y_fails, y_cost] = order_of(y);
  return std::make_pair(x_fails, x_cost) < std::make_pair(y_fails, (1 - kWorth) * y_cost);
}

void PlanSearch::scope_plans() {
  searched_seconds_ = seconds();
  if (best_ >= 0) plain_seconds_ = best_seconds();
  std::vector<size_t> order;
  for (size_t i = 0; i < priced_.size(); ++i) {
    const double most = fits(priced_[i].plan) ? kNear * plain_seconds_ : plain_seconds_;
    if (best_ < 0 || priced_[i].plan.seconds <= most) order.push_back(i);
  }
  const auto rank = [&](size_t i) {
    const PricedPlan& p = priced_[i].plan;
    return best_ < 0 ? static_cast<double>(p.memory()) : p.seconds;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t i, size_t j) { return rank(i) < rank(j); });
  const double left = std::min(options_.seconds - seconds(), kRest * options_.seconds);
  const double until = seconds() + std::max(kShare * options_.seconds, left);
  std::set<std::pair<std::vector<DimSet>, std::vector<int64_t>>> tried;
  for (const size_t i : order) {
    if (tried.size() == kPlans || seconds() > until) break;
    const Assignment& a = assignments_[priced_[i].from.assignment];
    std::vector<int64_t> sizes;
    for (const MeshAxis& axis : a.mesh.axes()) sizes.push_back(axis.size);
    if (!tried.insert({a.picks, sizes}).second) continue;
    const Priced plain = priced_[i];
    scope(plain, until);
  }
  drop_dims(until);
}

/// What a scoped rule cuts need not be cut by the rules for all: the best plan without one of its
/// dims, as long as that is better.
void PlanSearch::drop_dims(double until) {
  for (bool moves = best_ >= 0 && !priced_[best_].from.scoped.empty(); moves;) {
    const Priced best = priced_[best_];
    std::vector<Entry> entries;
    for (const std::string& dim : outlines_[0].dims) {
      const Assignment& chosen = assignments_[best.from.assignment];
      Assignment less = space_.with_fixed(space_.without(chosen, dim));
      if (less == chosen) continue;
      entries.push_back(best.from);
      entries.back().assignment = assignments_.size();
      assignments_.push_back(std::move(less));
    }
    std::vector<Priced> found;
    price_scoped(std::move(entries), scale_, until, found);
    moves = false;
    for (Priced& p : found) {
      if (!fits(p.plan) || p.plan.seconds >= best_seconds()) continue;
      priced_.push_back(std::move(p));
      best_ = static_cast<int>(priced_.size()) - 1;
      moves = true;
    }
  }
}

/// Of layers that are a loop in the table, what they take one by one is brought to its scale.
void PlanSearch::price_scoped(std::vector<Entry> entries, double scale, double until,
                              std::vector<Priced>& to) {
  for (size_t i = 0; i < entries.size() && seconds() < until; i += 2) {
    const size_t end = std::min(i + 2, entries.size());
    for (Priced& p : price({entries.begin() + static_cast<std::ptrdiff_t>(i),
                            entries.begin() + static_cast<std::ptrdiff_t>(end)})) {
      ++scoped_;
      if (!p.error.empty()) continue;
      scale_times(p.plan, scale);
      to.push_back(std::move(p));
    }
  }
}

/// All rules are tried as the first; further ones cut other segments by the same dim and axes.
void PlanSearch::scope(const Priced& plain, double until) {
  const std::vector<SegmentRule> rules =
      segment_rules(few_layers(), outlines_[0], space_, assignments_[plain.from.assignment]);
  if (rules.empty()) return;
  double scale = 1;
  if (pricer_.is_looped()) {
    const PricedPlan layers =
        pricer_.price_layers(plain.plan.mesh, layout_of(plain.from), build_of(plain.from));
    scale = plain.plan.seconds / layers.seconds;
  }
  std::vector<Priced> chosen;
  Priced last = plain;
  std::string cut;
  for (size_t round = 0; round < kRounds && seconds() < until; ++round) {
    std::vector<Entry> entries;
    for (const SegmentRule& rule : rules) {
      if (entries.size() == kTried) break;
      if (round > 0 && rule.cut != cut) continue;
      if (last.from.scoped.find(rule.text) != std::string::npos) continue;
      entries.push_back(last.from);
      entries.back().scoped = joined(last.from.scoped, rule.text);
    }
    std::vector<Priced> found;
    price_scoped(std::move(entries), scale, until, found);
    const auto next = std::min_element(
        found.begin(), found.end(),
        [&](const Priced& x, const Priced& y) { return order_of(x.plan) < order_of(y.plan); });
    if (next == found.end() || (round > 1 && !is_better(next->plan, last.plan))) break;
    last = *next;
    if (round == 0) cut = last.from.scoped.substr(last.from.scoped.rfind(' ') + 1);
    chosen.push_back(last);
  }
  for (Priced& p : chosen) {
    relax(p, scale, until);
    if (!fits(p.plan) || (best_ >= 0 && !is_better(p.plan, priced_[best_].plan))) continue;
    priced_.push_back(std::move(p));
    best_ = static_cast<int>(priced_.size()) - 1;
    scale_ = scale;
  }
}

/// With the memory that rules save: what is one step cheaper, as long as that pays.
void PlanSearch::relax(Priced& p, double scale, double until) {
  for (bool moves = fits(p.plan); moves && seconds() < until;) {
    std::vector<Entry> entries;
    if (p.from.parts > 0) {
      entries.push_back(p.from);
      --entries.back().parts;
    }
    if (p.from.again > 0) {
      entries.push_back(p.from);
      --entries.back().again;
    }
    for (const Storage& storage : storages(assignments_[p.from.assignment])) {
      if (storage.stage + 1 != p.from.storage.stage) continue;
      entries.push_back(p.from);
      entries.back().storage = storage;
    }
    std::vector<Priced> found;
    price_scoped(std::move(entries), scale, until, found);
    moves = false;
    for (Priced& x : found) {
      if (!is_better(x.plan, p.plan)) continue;
      p = std::move(x);
      moves = true;
    }
  }
}

}  // namespace tessera
