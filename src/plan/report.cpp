#include "plan/report.h"

#include <algorithm>
#include <set>

#include "base/fail.h"
#include "base/units.h"

namespace tessera {

namespace {

constexpr int64_t kGib = int64_t{1} << 30;
constexpr int kMostRounds = 4;  ///< in which the best plan gives way to an alternative

/// Which settings were given and could be searched instead.
std::string given_text(const PlanModel& model) {
  const bool recompute = model.recompute_options.size() == 1,
             microbatches = model.microbatches.size() == 1;
  if (!recompute && !microbatches) return "";
  return fmt::format("; {} given here: where {} not, `tessera plan` and --layout auto try others",
                     recompute && microbatches ? "recompute and microbatches are"
                     : recompute               ? "recompute is"
                                               : "microbatches are",
                     recompute && !microbatches ? "it is" : "they are");
}

}  // namespace

Plan PlanReport::plan(PlanSearch& search) {
  require_best(search.counts());
  Plan plan;
  describe_model(plan);
  plan.bound = search.bound();
  plan.optimal = plan.bound >= found_.best_seconds();
  plan.space = static_cast<int64_t>(candidates_.size());
  plan.priced = static_cast<int64_t>(found_.all().size());
  plan.illegal = search.counts().illegal;
  plan.too_large = search.counts().too_large;
  plan.plain_seconds = scopes_.plain_seconds();
  plan.scoped = pricer_.scaled();
  plan.first_seconds = search.counts().first_seconds;
  plan.proof_seconds = scopes_.begin_seconds();
  // The search leaves out what it estimates to be too large, so an alternative may be better than
  // all that it took.
  const auto is_beaten = [&] {
    return std::any_of(
        plan.alternatives.begin(), plan.alternatives.end(),
        [&](const DimAlternative& a) { return a.fits && a.penalty < -1e-9 * plan.table_seconds; });
  };
  for (int round = 0; round == 0 || (round < kMostRounds && is_beaten()); ++round) {
    plan.alternatives.clear();
    choose_whole(plan);
    add_alternatives(plan);
  }
  add_runners_up(plan);
  add_usual(search, plan);
  plan.bound = std::min(plan.bound, plan.table_seconds);
  plan.saved_per_gib = saved_per_gib(plan);
  plan.memory_limit = memory_.bytes();
  if (!candidates_.options().memory) plan.reserve = candidates_.machine().reserve;
  plan.machine = candidates_.machine().name;
  plan.search_seconds = clock_.seconds();
  return plan;
}

void PlanReport::require_best(const SearchCounts& counts) {
  if (found_.has_best()) return;
  if (!found_.all().empty()) fail_with_least();
  TESSERA_REQUIRE(counts.illegal > 0 || memory_.least_stored() > 1e299,
                  "[plan] nothing fits into {} a device: parameters and optimizer state alone "
                  "need {} at least; use more devices",
                  bytes_text(static_cast<double>(memory_.bytes())),
                  bytes_text(memory_.least_stored()));
  fail(ErrorKind::usage, "[plan] no layout is legal{}{}", counts.first_error.empty() ? "" : ": ",
       counts.first_error.empty() ? "; give other sizes" : counts.first_error);
}

void PlanReport::fail_with_least() {
  const auto least = std::min_element(
      found_.all().begin(), found_.all().end(),
      [](const auto& a, const auto& b) { return a.plan.memory() < b.plan.memory(); });
  const PricedPlan& p = least->plan;
  const int64_t needed = std::max(p.memory(), pricer_.price(least->candidate, true).memory());
  fail(ErrorKind::usage,
       "[plan] nothing that was tried fits into {} a device; the least is {}: --memory {} with "
       "mesh '{}', layout '{}'{}, recompute {}, reshard_after_forward {}, microbatches {}{}, "
       "{:.3f} ms a step{}",
       bytes_text(static_cast<double>(memory_.bytes())), bytes_text(static_cast<double>(needed)),
       needed, p.mesh.to_string(), p.rules,
       p.zero > 0 ? fmt::format(", --zero {} --over {}", p.zero, p.over) : "", p.build.recompute,
       p.build.reshard_after_forward, p.build.microbatches,
       p.settings.empty() ? "" : ", " + p.settings, 1e3 * p.seconds,
       given_text(candidates_.model()));
}

/// The plans that fit, the fastest first.
std::vector<size_t> PlanReport::in_order() const {
  const std::vector<PricedCandidate>& all = found_.all();
  std::vector<size_t> order;
  for (size_t i = 0; i < all.size(); ++i) {
    if (memory_.fits(all[i].plan)) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return all[a].plan.seconds < all[b].plan.seconds; });
  return order;
}

/// Lowers the best plan whole, as it will run. If it turns out not to fit, takes the next one.
void PlanReport::choose_whole(Plan& plan) {
  std::vector<PricedCandidate>& all = found_.all();
  const std::vector<size_t> order = in_order();
  for (const size_t i : order) {
    found_.set_best(i);
    plan.table_seconds = all[i].plan.seconds;
    plan.best = pricer_.price(all[i].candidate, true);
    if (memory_.fits(plan.best)) break;
    all[i].plan = plan.best;
  }
  TESSERA_REQUIRE(memory_.fits(plan.best),
                  "[plan] nothing fits into {} a device when it is lowered whole; the least of the "
                  "{} plans that seemed to is {}",
                  bytes_text(static_cast<double>(memory_.bytes())), order.size(),
                  bytes_text(static_cast<double>(plan.best.memory())));
}

/// Lowered as they will run too, unless they were extrapolated from fewer layers: to lower all of
/// these, one by one, would take long.
void PlanReport::add_runners_up(Plan& plan) {
  // A plan is priced again where an alternative of a dim turns out to be one that is known.
  std::set<std::string> shown = {train_flags(plan.best, true)};
  for (const size_t i : in_order()) {
    if (plan.runners_up.size() == candidates_.options().runners_up) break;
    const PricedCandidate& p = found_.all()[i];
    if (!shown.insert(train_flags(p.plan, true)).second) continue;
    const bool is_shown = plan.runners_up.size() < PlanOptions().runners_up;
    PricedPlan runner_up = is_shown ? as_run(p) : p.plan;
    if (memory_.fits(runner_up)) plan.runners_up.push_back(std::move(runner_up));
  }
}

/// With the prices of whole Programs, as long as there is time.
PricedPlan PlanReport::as_run(const PricedCandidate& p) {
  const Pricer& pricer = candidates_.pricer();
  const bool one_by_one = pricer.is_continued() || pricer.is_looped(),
             has_time = clock_.seconds() < candidates_.options().seconds;
  if (!has_time || (one_by_one && !candidates_.has_stages(p.candidate.assignment))) return p.plan;
  return pricer_.price(p.candidate, true);
}

/// The fastest plan of each other kind; if none of a kind fits, the fastest that does not.
void PlanReport::add_usual(const PlanSearch& search, Plan& plan) {
  constexpr size_t kUsual = 4;
  std::vector<size_t> order = in_order();
  const std::vector<PricedCandidate>& all = found_.all();
  for (size_t i = 0; i < all.size(); ++i) {
    if (!memory_.fits(all[i].plan)) order.push_back(i);
  }
  std::set<std::string> kinds = {kind_of(plan.best, plan.microbatch_dim)};
  for (const size_t i : order) {
    const PricedCandidate& p = all[i];
    if (!search.known().contains(p.candidate.assignment) || !p.candidate.scoped.empty()) continue;
    if (plan.usual.size() < kUsual && kinds.insert(kind_of(p.plan, plan.microbatch_dim)).second)
      plan.usual.push_back(as_run(p));
  }
}

void PlanReport::describe_model(Plan& plan) {
  const StepSummary& summary = candidates_.summary();
  plan.microbatch_dim = candidates_.model().microbatch_dim;
  if (const int d = summary.find(plan.microbatch_dim); d >= 0) plan.examples = summary.sizes[d];
  plan.tokens = candidates_.model().tokens;
  for (const Work& work : summary.work) plan.flops += work.flops * work.count;
}

double PlanReport::saved_per_gib(const Plan& plan) const {
  double with_more = plan.table_seconds;
  for (const PricedCandidate& p : found_.all()) {
    // Times of plans lowered whole are not comparable with those of the search.
    if (!p.plan.whole && p.plan.memory() <= memory_.bytes() + kGib)
      with_more = std::min(with_more, p.plan.seconds);
  }
  return plan.table_seconds - with_more;
}

/// For each dim: the best plan on the same mesh that splits the dim differently. Prices at least
/// the same plan without the dim.
void PlanReport::add_alternatives(Plan& plan) {
  const Candidate best = found_.best().candidate;
  const Assignment chosen = candidates_.assignment(best);
  const Space& space = candidates_.space();
  const double until = std::max(clock_.seconds(), candidates_.options().seconds);
  for (const std::string& dim : candidates_.summary().dims) {
    const std::string now = space.axes_of(chosen, dim);
    const Assignment plain = space.without(chosen, dim);
    if (now != "-" && !(space.with_fixed(plain) == chosen)) {
      Candidate other = best;
      other.assignment = candidates_.add(plain);
      for (PricedCandidate& p : pricer_.price_scaled({other}, scopes_.scale(), until))
        found_.add(std::move(p));
    }
    const PricedCandidate* found = nullptr;
    const auto cost = [&](const PricedCandidate& p) {
      return std::make_pair(!memory_.fits(p.plan), p.plan.seconds);
    };
    for (const PricedCandidate& p : found_.all()) {
      const Assignment& a = candidates_.assignment(p.candidate);
      if (a.mesh.axes() != chosen.mesh.axes() || space.axes_of(a, dim) == now) continue;
      if (!found || cost(p) < cost(*found)) found = &p;
    }
    if (!found) continue;
    const PricedPlan& p = found->plan;
    const std::string axes = space.axes_of(candidates_.assignment(found->candidate), dim);
    plan.alternatives.push_back(
        {dim, now, axes, p.seconds - plan.table_seconds, p.memory(), memory_.fits(p)});
  }
}

}  // namespace tessera
