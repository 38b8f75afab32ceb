#include "plan/plan_search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

namespace tessera {

namespace {

constexpr double kUntilFound = 3;      ///< times the asked time, until a first plan is found
constexpr size_t kLeast = 6;           ///< candidates priced by price_least_memory()
constexpr int64_t kMostPerStage = 16;  ///< microbatches of a stage that are tried first
/// Known layouts that are priced first: of a family, and of all. kLater: how much faster the second
/// of a family must be guessed to come before the first of another one.
constexpr size_t kOfFamily = 3, kFirst = 24;
constexpr double kOfBound = 0.05;  ///< of the asked time, for bounds of what is left
constexpr double kLater = 1.1, kBeforeAll = 1e-12;

}  // namespace

void PlanSearch::run(const std::vector<Assignment>& assignments, bool meshes_are_free) {
  meshes_are_free_ = meshes_are_free;
  push_assignments(assignments);
  std::vector<QueueEntry> batch;
  while (take_next(batch)) {
    std::vector<Candidate> candidates;
    for (const QueueEntry& entry : batch) candidates.push_back(entry.candidate);
    std::vector<PricedCandidate> results = pricer_.price(candidates);
    for (size_t i = 0; i < results.size(); ++i) {
      learn(batch[i], results[i]);
      if (!results[i].error.empty()) continue;
      const PricedPlan& plan = results[i].plan;
      if (!memory_.fits(plan) || (found_.has_best() && plan.seconds >= found_.best_seconds())) {
        found_.add(std::move(results[i]));
        continue;
      }
      if (!found_.has_best()) counts_.first_seconds = clock_.seconds();
      found_.add_best(std::move(results[i]));
    }
  }
}

/// The candidates of an assignment that people would think of, those that fit by estimate.
std::vector<Candidate> PlanSearch::ways_to_run(size_t assignment) {
  std::vector<Candidate> ways;
  const bool staged = candidates_.has_stages(assignment);
  Candidate c{assignment};
  const auto add_in_stages = [&] {
    const int64_t stages = candidates_.stages(assignment);
    const std::vector<int64_t> chunks = candidates_.chunk_options(assignment, c.schedule);
    for (size_t i = 0; i < chunks.size(); i += std::max<size_t>(1, chunks.size() - 1)) {
      c.chunks = chunks[i];
      for (size_t m = 0; m < candidates_.microbatch_options(); ++m) {
        c.microbatch_option = m;
        const int64_t count = candidates_.microbatches(m);
        if (count > 1 && count >= stages && count <= kMostPerStage * stages &&
            memory_.likely_fits(c))
          ways.push_back(c);
      }
    }
  };
  for (const Storage& storage : candidates_.storages(assignment)) {
    if (storage.stage == 2 || (meshes_are_free_ && candidates_.is_merged(assignment, storage)))
      continue;
    c.storage = storage;
    for (c.recompute_option = 0; c.recompute_option < candidates_.recompute_options();
         ++c.recompute_option) {
      if (!candidates_.applies(c)) continue;
      c.schedule = candidates_.model().schedules[0];
      c.reduce_each = false;
      if (staged) {
        add_in_stages();
        continue;
      }
      for (const bool each : {false, true}) {
        c.reduce_each = each;
        const std::optional<size_t> option = memory_.likely_microbatch_option(c);
        if (!option || (each && candidates_.microbatches(*option) == 1)) continue;
        c.microbatch_option = *option;
        ways.push_back(c);
        if (!candidates_.model().may_reduce_each_microbatch) break;
      }
    }
  }
  return ways;
}

void PlanSearch::look_first(const std::vector<Assignment>& known, bool meshes_are_free) {
  meshes_are_free_ = meshes_are_free;
  std::map<std::vector<DimSet>, std::vector<QueueEntry>> families;
  for (const Assignment& a : known) {
    const size_t assignment = candidates_.add(candidates_.space().with_fixed(a));
    known_.insert(assignment);
    if (meshes_are_free) candidates_.order_axes(assignment);
    for (const Candidate& c : ways_to_run(assignment)) {
      QueueEntry entry{c};
      bounds_.estimate(entry);
      entry.is_seed = true;
      std::vector<DimSet> family = a.picks;
      std::sort(family.begin(), family.end());
      families[family].push_back(std::move(entry));
    }
  }
  std::vector<QueueEntry> first;
  for (auto& [picks, all] : families) {
    const auto by_guess = [](const QueueEntry& x, const QueueEntry& y) {
      return std::tie(x.guess, x.candidate.assignment) < std::tie(y.guess, y.candidate.assignment);
    };
    std::stable_sort(all.begin(), all.end(), by_guess);
    for (size_t i = 0; i < std::min(kOfFamily, all.size()); ++i) {
      all[i].key = all[i].guess * (i == 0 ? 1 : kLater);
      first.push_back(std::move(all[i]));
    }
  }
  std::sort(first.begin(), first.end(),
            [](const QueueEntry& x, const QueueEntry& y) { return x.key < y.key; });
  if (first.size() > kFirst) first.resize(kFirst);
  for (size_t i = 0; i < first.size(); ++i) {
    first[i].key = kBeforeAll * static_cast<double>(i + 1);
    queue_.push(std::move(first[i]));
  }
}

void PlanSearch::try_more_microbatches() {
  while (found_.has_best() && clock_.seconds() < kSearchEnds * candidates_.options().seconds) {
    Candidate c = found_.best().candidate;
    if (++c.microbatch_option >= candidates_.microbatch_options()) return;
    std::vector<Candidate> more = {c};
    more.back().reduce_each = false;
    if (candidates_.model().may_reduce_each_microbatch && !candidates_.has_stages(c.assignment)) {
      more.push_back(c);
      more.back().reduce_each = true;
    }
    const double before = found_.best_seconds();
    for (PricedCandidate& p : pricer_.price(more)) {
      if (!p.error.empty()) continue;
      const bool is_best = memory_.fits(p.plan) && p.plan.seconds < found_.best_seconds();
      is_best ? found_.add_best(std::move(p)) : found_.add(std::move(p));
    }
    if (found_.best_seconds() >= before) return;
  }
}

void PlanSearch::push_assignments(const std::vector<Assignment>& assignments) {
  for (const Assignment& a : assignments) {
    if (is_mirrored(a)) continue;
    QueueEntry entry;
    entry.is_open = true;
    entry.candidate.assignment = candidates_.add(candidates_.space().with_fixed(a));
    entry.bound = bounds_.of_assignment(entry.candidate.assignment);
    entry.is_seed = is_seed(a);
    entry.key = entry.is_seed ? 0 : bounds_.key_of_assignment(entry.candidate.assignment);
    queue_.push(std::move(entry));
  }
}

/// True if another assignment differs only in the order of axes of equal size. The order does not
/// matter if one class of links joins all devices.
bool PlanSearch::is_mirrored(const Assignment& a) const {
  const std::vector<LinkTier>& links = candidates_.machine().links;
  const bool alike = links.size() < 2 || links[0].devices >= a.mesh.size();
  const auto is_fixed = [](const LayoutRule& rule) { return !rule.automatic; };
  const std::vector<LayoutRule>& rules = candidates_.options().layout.rules();
  if (meshes_are_free_ || !alike || std::any_of(rules.begin(), rules.end(), is_fixed)) return false;
  for (size_t i = 1; i < a.picks.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const MeshAxis &x = a.mesh.axes()[j], &y = a.mesh.axes()[i];
      if (x.size == y.size && x.link == y.link && a.picks[j] > a.picks[i]) return true;
    }
  }
  return false;
}

/// True if every axis splits the examples and nothing else.
bool PlanSearch::is_seed(const Assignment& a) const {
  const std::vector<std::string>& dims = candidates_.summary().dims;
  const auto at = std::find(dims.begin(), dims.end(), candidates_.model().microbatch_dim);
  if (at == dims.end()) return false;
  const DimSet examples = DimSet{1} << (at - dims.begin());
  return std::all_of(a.picks.begin(), a.picks.end(),
                     [&](const DimSet pick) { return pick == examples; });
}

bool PlanSearch::is_seed(const Candidate& c) const {
  const size_t axes = candidates_.assignment(c).picks.size();
  return c.storage.stage == 0 || (c.storage.stage == 3 && c.storage.axes.size() == axes);
}

/// Fills `batch` with candidates to price; false if the search is over.
bool PlanSearch::take_next(std::vector<QueueEntry>& batch) {
  batch.clear();
  const bool is_found = found_.has_best() || found_.has_below();
  const double most = (is_found ? kSearchEnds : kUntilFound) * candidates_.options().seconds;
  while (batch.size() < kPricingThreads && !queue_.empty() && clock_.seconds() < most) {
    QueueEntry entry = queue_.pop();
    if (entry.bound >= found_.cutoff()) continue;
    if (corrections_.is_contradiction(entry.candidate)) continue;
    if (entry.is_open) {
      expand(entry);
      continue;
    }
    entry.bound = bounds_.of(entry);
    if (entry.bound >= found_.cutoff()) continue;
    const double corrected = entry.guess * corrections_.time(entry.candidate);
    if (!entry.is_seed && queue_.push_back(entry, std::max(entry.bound, corrected))) continue;
    if (memory_.is_too_large(entry.candidate)) {
      push_with_more_microbatches(entry.candidate);
      continue;
    }
    batch.push_back(std::move(entry));
  }
  return !batch.empty();
}

/// Pushes the candidates of an assignment. Per storage: the recompute options up to the first that
/// fits for sure.
void PlanSearch::expand(const QueueEntry& open) {
  const size_t assignment = open.candidate.assignment;
  if (meshes_are_free_) candidates_.order_axes(assignment);
  if (candidates_.has_stages(assignment)) return expand_stages(assignment);
  bool any = false;
  for (const Storage& storage : candidates_.storages(assignment)) {
    if (meshes_are_free_ && candidates_.is_merged(assignment, storage)) {
      any = true;  // the assignment with one axis gives the same plan
      continue;
    }
    for (size_t recompute = 0; recompute < candidates_.recompute_options(); ++recompute) {
      Candidate c{assignment, storage, recompute};
      if (!candidates_.applies(c)) continue;
      for (const bool each : {false, true}) {
        c.reduce_each = each;
        any |= push_in_microbatches(c, open.is_seed && is_seed(c));
        if (!candidates_.model().may_reduce_each_microbatch) break;
      }
      c.reduce_each = false;
      if (memory_.surely_fits(c)) break;  // no need to recompute more
    }
  }
  counts_.too_large += any ? 0 : 1;
}

/// Pushes the candidate in the fewest microbatches that may fit; false if none do.
bool PlanSearch::push_in_microbatches(Candidate c, bool is_seed) {
  const std::optional<size_t> option = memory_.first_microbatch_option(c);
  if (!option) return false;
  c.microbatch_option = *option;
  // With one microbatch both ways to reduce gradients are the same.
  if (!c.reduce_each || candidates_.microbatches(*option) > 1) push_candidate(c, is_seed);
  return true;
}

/// The same with stages: more microbatches fill them better, and more chunks as well, so each
/// number is a candidate.
void PlanSearch::expand_stages(size_t assignment) {
  bool any = false;
  for (const Storage& storage : candidates_.storages(assignment)) {
    if (meshes_are_free_ && candidates_.is_merged(assignment, storage)) {
      any = true;
      continue;
    }
    // Gradients that are added up are whole, so ZeRO 2 equals ZeRO 1.
    if (storage.stage == 2 && !candidates_.model().reduce_each_microbatch) continue;
    for (const std::string& schedule : candidates_.model().schedules) {
      Candidate c{assignment, storage};
      c.schedule = schedule;
      for (const int64_t chunks : candidates_.chunk_options(assignment, schedule)) {
        c.chunks = chunks;
        for (c.microbatch_option = 0; c.microbatch_option < candidates_.microbatch_options();
             ++c.microbatch_option) {
          if (candidates_.microbatches(c.microbatch_option) > 1) any |= push_stages(c);
        }
      }
    }
  }
  counts_.too_large += any ? 0 : 1;
}

/// Pushes the recompute options up to the first that fits, without those that are too slow; false
/// if none may fit.
bool PlanSearch::push_stages(Candidate c) {
  bool any = false;
  for (c.recompute_option = 0; c.recompute_option < candidates_.recompute_options();
       ++c.recompute_option) {
    if (!candidates_.applies(c)) continue;
    if (bounds_.least(c) >= found_.cutoff()) {
      any = true;
      continue;
    }
    if (!memory_.may_fit(c)) continue;
    any = true;
    push_candidate(c);
    if (memory_.fits_with_room(c)) break;  // no need to recompute more
  }
  return any;
}

void PlanSearch::push_candidate(const Candidate& c, bool is_seed) {
  if (bounds_.least(c) >= found_.cutoff()) return;
  QueueEntry entry;
  entry.candidate = c;
  bounds_.estimate(entry);
  entry.is_seed = is_seed;
  entry.key = is_seed ? 0 : entry.guess * corrections_.time(c);
  if (entry.bound < found_.cutoff()) queue_.push(std::move(entry));
}

void PlanSearch::push_with_more_microbatches(Candidate c) {
  if (candidates_.has_stages(c.assignment)) return;  // they are candidates of their own
  const std::optional<size_t> option = memory_.next_microbatch_option(c);
  if (!option) return;
  c.microbatch_option = *option;
  push_candidate(c);
}

void PlanSearch::learn(const QueueEntry& entry, const PricedCandidate& priced) {
  const Candidate& c = priced.candidate;
  if (!priced.error.empty()) {
    ++counts_.illegal;
    if (counts_.first_error.empty()) counts_.first_error = priced.error;
    if (priced.contradicts) corrections_.set_contradiction(c);
    return;
  }
  const PricedPlan& p = priced.plan;
  // Half of the error on a logarithmic scale, because the sizes of other candidates differ.
  corrections_.set_time(c, std::sqrt(p.seconds / entry.guess));
  if (entry.transient > 0)
    corrections_.set_memory(c, static_cast<double>(p.transient + p.inputs) / entry.transient);
  bounds_.learn(c, p);
  if (!memory_.fits(p)) push_with_more_microbatches(c);
}

double PlanSearch::bound() {
  const double until = std::max(clock_.seconds(), kSearchEnds * candidates_.options().seconds) +
                       kOfBound * candidates_.options().seconds;
  return queue_.least_bound(found_.cutoff(), [&](const QueueEntry& entry) {
    return clock_.seconds() < until ? bound_of(entry) : entry.bound;
  });
}

/// The bound of what an entry may still become: of its candidates that may fit.
double PlanSearch::bound_of(const QueueEntry& entry) {
  const double none = found_.cutoff();
  if (corrections_.is_contradiction(entry.candidate)) return none;
  if (entry.is_open) return std::max(entry.bound, bound_of_open(entry.candidate.assignment));
  if (!memory_.is_too_large(entry.candidate)) return bounds_.of(entry);
  if (candidates_.has_stages(entry.candidate.assignment)) return none;
  double least = none;
  QueueEntry more{entry.candidate};
  std::optional<size_t> option = memory_.next_microbatch_option(more.candidate);
  for (; option && *option < candidates_.microbatch_options(); ++*option) {
    more.candidate.microbatch_option = *option;
    bounds_.estimate(more);
    least = std::min(least, bounds_.of(more));
  }
  return least;
}

/// The same of an assignment: with the recompute options with which it may fit.
double PlanSearch::bound_of_open(size_t assignment) {
  const double none = found_.cutoff();
  Candidate c{assignment};
  c.schedule = candidates_.model().schedules[0];
  double least = none;
  for (size_t recompute = 0; recompute < candidates_.recompute_options(); ++recompute) {
    c.recompute_option = recompute;
    const double bound = bounds_.of_assignment(assignment, recompute);
    if (bound < least && may_fit(c)) least = bound;
  }
  return least;
}

/// True if the assignment may fit with the candidate's recompute option.
bool PlanSearch::may_fit(Candidate c) {
  c.reduce_each = candidates_.model().may_reduce_each_microbatch;
  for (const Storage& storage : candidates_.storages(c.assignment)) {
    c.storage = storage;
    if (!candidates_.applies(c)) continue;
    for (const std::string& schedule : candidates_.model().schedules) {
      const std::vector<int64_t> options = candidates_.chunk_options(c.assignment, schedule);
      if (options.empty()) continue;
      c.schedule = schedule;
      c.chunks = options[0];
      if (memory_.may_fit_in_microbatches(c)) return true;
    }
  }
  return false;
}

void PlanSearch::price_least_memory() {
  std::vector<std::pair<double, Candidate>> all;
  Candidate c;
  c.microbatch_option = candidates_.microbatch_options() - 1;
  for (c.assignment = 0; c.assignment < candidates_.size(); ++c.assignment) {
    c.reduce_each =
        candidates_.model().may_reduce_each_microbatch && !candidates_.has_stages(c.assignment);
    for (const Storage& storage : candidates_.storages(c.assignment)) {
      c.storage = storage;
      for (c.recompute_option = 0; c.recompute_option < candidates_.recompute_options();
           ++c.recompute_option) {
        if (!candidates_.applies(c)) continue;
        const MemoryEstimate m =
            candidates_.estimates(c.recompute_option)
                .memory(candidates_.assignment(c), storage, candidates_.microbatching(c));
        all.emplace_back(m.stored + m.transient, c);
      }
    }
  }
  const size_t tried = std::min(kLeast, all.size());
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(tried), all.end(),
                    [](const auto& x, const auto& y) { return x.first < y.first; });
  for (size_t i = 0; i < tried; ++i) {
    if (meshes_are_free_) candidates_.order_axes(all[i].second.assignment);
    for (PricedCandidate& priced : pricer_.price(std::vector<Candidate>{all[i].second})) {
      if (!priced.error.empty()) {
        if (counts_.first_error.empty()) counts_.first_error = priced.error;
      } else if (memory_.fits(priced.plan)) {
        found_.add_best(std::move(priced));
      } else {
        found_.add(std::move(priced));
      }
    }
  }
}

}  // namespace tessera
