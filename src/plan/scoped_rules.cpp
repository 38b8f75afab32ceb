// Each of the best few plans gets rules one after the other, those with equal work (`length:a*2`)
// among them: in each round, the rule with the best plan. A first rule that does not pay is kept:
// it may pay together with a second one. The memory that rules save is then spent on fewer
// microbatches, less recompute or a lower ZeRO stage. At the end the best plan is tried without
// those global rules that scoped ones replace.
#include "plan/scoped_rules.h"

#include <algorithm>
#include <set>

#include "plan/balanced_rules.h"
#include "plan/segments.h"

namespace tessera {

namespace {

constexpr size_t kPlans = 4, kRounds = 3;
constexpr size_t kTried = 16;       ///< rules per round
constexpr double kNearRules = 1.2;  ///< plans this many times slower than the best are tried
constexpr double kGains = 0.02;     ///< share of a step's time that a plan with rules must save
constexpr double kWorth = 0.005;    ///< share of a plan's time or memory that a rule must save
constexpr double kRest = 0.3;       ///< of the asked time, if the search leaves so much

}  // namespace

std::string joined(const std::string& rules, const std::string& more) {
  return rules + (rules.empty() || more.empty() ? "" : ";") + more;
}

/// The order of plans: those that fit come first, by time; then the others, by memory.
std::pair<bool, double> ScopedRules::cost(const PricedPlan& p) const {
  const bool fits = memory_.fits(p);
  return {!fits, fits ? p.seconds : static_cast<double>(p.memory())};
}

/// True if x is better than y by enough to justify a rule.
bool ScopedRules::is_better(const PricedPlan& x, const PricedPlan& y) const {
  const auto [x_fails, x_cost] = cost(x);
  const auto [y_fails, y_cost] = cost(y);
  return std::make_pair(x_fails, x_cost) < std::make_pair(y_fails, (1 - kWorth) * y_cost);
}

/// Plans that scoped rules may make the best: those nearly as fast as the best, and faster ones
/// that do not fit. If none fits: all, by memory.
std::vector<size_t> ScopedRules::plans_to_try() const {
  std::vector<size_t> order;
  const std::vector<PricedCandidate>& all = found_.all();
  for (size_t i = 0; i < all.size(); ++i) {
    if (candidates_.has_stages(all[i].candidate.assignment)) continue;  // a loop, priced as one
    const double most = memory_.fits(all[i].plan) ? kNearRules * plain_seconds_ : plain_seconds_;
    if (!found_.has_best() || all[i].plan.seconds <= most) order.push_back(i);
  }
  const auto rank = [&](size_t i) {
    const PricedPlan& p = all[i].plan;
    return found_.has_best() ? p.seconds : static_cast<double>(p.memory());
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t i, size_t j) { return rank(i) < rank(j); });
  return order;
}

void ScopedRules::run() {
  const double limit = candidates_.options().seconds;
  begin_seconds_ = clock_.seconds();
  if (found_.has_best()) plain_seconds_ = found_.best_seconds();
  const std::vector<size_t> order = plans_to_try();
  const double until = std::min(clock_.seconds() + kRest * limit, kScopesEnd * limit);
  std::set<std::pair<std::vector<DimSet>, std::vector<int64_t>>> tried;
  for (const size_t i : order) {
    if (tried.size() == kPlans || clock_.seconds() > until) break;
    const PricedCandidate plain = found_.all()[i];
    const Assignment& a = candidates_.assignment(plain.candidate);
    std::vector<int64_t> sizes;
    for (const MeshAxis& axis : a.mesh.axes()) sizes.push_back(axis.size);
    if (tried.insert({a.picks, sizes}).second) try_plan(plain, until);
  }
  drop_dims(until);
}

/// A dim that scoped rules split may not need its global rule: removes dims from the best plan as
/// long as it gets better.
void ScopedRules::drop_dims(double until) {
  for (bool moves = found_.has_best() && !found_.best().candidate.scoped.empty(); moves;) {
    const Candidate best = found_.best().candidate;
    std::vector<Candidate> fewer;
    for (const std::string& dim : candidates_.summary().dims) {
      const Assignment& chosen = candidates_.assignment(best);
      const Space& space = candidates_.space();
      Assignment less = space.with_fixed(space.without(chosen, dim));
      if (less == chosen) continue;
      fewer.push_back(best);
      fewer.back().assignment = candidates_.add(std::move(less));
    }
    moves = false;
    for (PricedCandidate& p : pricer_.price_scaled(fewer, scale_, until)) {
      if (!memory_.fits(p.plan) || p.plan.seconds >= found_.best_seconds()) continue;
      found_.add_best(std::move(p));
      moves = true;
    }
  }
}

/// The best plan of each round. The first round tries all rules, later ones those that split other
/// segments by the same dim and axes.
std::vector<PricedCandidate> ScopedRules::best_of_rounds(const PricedCandidate& plain, double scale,
                                                         double until) {
  const Graph& graph = candidates_.few_layers();
  const Assignment& a = candidates_.assignment(plain.candidate);
  std::vector<SegmentRule> rules =
      balanced_rules(graph, candidates_.summary(), candidates_.space(), a);
  const std::vector<SegmentRule> of_segments =
      segment_rules(graph, candidates_.summary(), candidates_.space(), a);
  rules.insert(rules.end(), of_segments.begin(), of_segments.end());
  std::vector<PricedCandidate> chosen;
  PricedCandidate last = plain;
  std::string split;
  for (size_t round = 0; round < kRounds && clock_.seconds() < until; ++round) {
    std::vector<Candidate> with_rule;
    for (const SegmentRule& rule : rules) {
      if (with_rule.size() == kTried) break;
      if (round > 0 && rule.cut != split) continue;
      const std::string& scoped = last.candidate.scoped;
      if (scoped.find(rule.text) != std::string::npos) continue;
      with_rule.push_back(last.candidate);
      with_rule.back().scoped = joined(scoped, rule.text);
    }
    const std::vector<PricedCandidate> priced = pricer_.price_scaled(with_rule, scale, until);
    const auto next =
        std::min_element(priced.begin(), priced.end(),
                         [&](const auto& x, const auto& y) { return cost(x.plan) < cost(y.plan); });
    if (next == priced.end() || (round > 1 && !is_better(next->plan, last.plan))) break;
    last = *next;
    const std::string& scoped = last.candidate.scoped;
    if (round == 0) split = scoped.substr(scoped.rfind(' ') + 1);
    chosen.push_back(last);
  }
  return chosen;
}

void ScopedRules::try_plan(const PricedCandidate& plain, double until) {
  const double scale = pricer_.scale_of(plain);
  for (PricedCandidate& p : best_of_rounds(plain, scale, until)) {
    spend_memory(p, scale, until);
    const bool pays = plain_seconds_ == 0 || p.plan.seconds <= (1 - kGains) * plain_seconds_;
    const bool is_best = !found_.has_best() || (pays && is_better(p.plan, found_.best().plan));
    if (!memory_.fits(p.plan) || !is_best) continue;
    found_.add_best(std::move(p));
    scale_ = scale;
  }
}

/// Spends the memory that rules saved: takes the next cheaper option as long as that pays.
void ScopedRules::spend_memory(PricedCandidate& p, double scale, double until) {
  for (bool moves = memory_.fits(p.plan); moves && clock_.seconds() < until;) {
    const Candidate& c = p.candidate;
    std::vector<Candidate> cheaper;
    if (c.microbatch_option > 0) {
      cheaper.push_back(c);
      --cheaper.back().microbatch_option;
    }
    if (c.recompute_option > 0) {
      cheaper.push_back(c);
      --cheaper.back().recompute_option;
    }
    if (c.reduce_each) {
      cheaper.push_back(c);
      cheaper.back().reduce_each = false;
    }
    for (const Storage& storage : candidates_.storages(c.assignment)) {
      if (storage.stage + 1 != c.storage.stage) continue;
      cheaper.push_back(c);
      cheaper.back().storage = storage;
    }
    moves = false;
    for (PricedCandidate& x : pricer_.price_scaled(cheaper, scale, until)) {
      if (!is_better(x.plan, p.plan)) continue;
      p = std::move(x);
      moves = true;
    }
  }
}

}  // namespace tessera
