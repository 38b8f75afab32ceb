#include "api/plan_search.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/fail.h"

namespace tessera {

namespace {

constexpr double kTooLarge = 1.25;  ///< what is guessed to need so much of the memory is left out
constexpr double kSurelyTooLarge = 1.1;  // of the limit, as estimated from a plan of the kind
constexpr double kCopies = 1.0 / 16;
constexpr size_t kThreads = 2;
// Of guesses: a step computes so much longer than its products; of what can run beside computing so
// much is waited for at least; and computing hides no more than so much of it.
constexpr double kComputing = 1.1, kExposed = 0.1, kHides = 0.7;

Outline outline_of_model(Pricer& pricer, size_t again) {
  const PlanModel& model = pricer.model();
  const auto built = [&](int64_t layers) -> const PlanStep& {
    return pricer.built({layers, model.again[again].first, model.again[again].second,
                         model.microbatches[0], pricer.is_looped()});
  };
  if (!pricer.is_continued()) {
    const PlanStep& all = built(model.layers);
    const OutlineGraph graph{*all.graph, all.functions};
    return outline_of(graph, graph, 1, pricer.machine());
  }
  const PlanStep &one = built(1), &two = built(2);
  return outline_of({*one.graph, one.functions}, {*two.graph, two.functions}, model.layers,
                    pricer.machine());
}

std::vector<Outline> outlines_of(Pricer& pricer) {
  std::vector<Outline> outlines;
  for (size_t again = 0; again < pricer.model().again.size(); ++again)
    outlines.push_back(outline_of_model(pricer, again));
  for (const Outline& o : outlines)
    check(o.dims == outlines[0].dims, "what is made again changes a model's dims");
  return outlines;
}

}  // namespace

PlanSearch::PlanSearch(const PlanModel& model, const Machine& machine, const PlanOptions& options)
    : pricer_(model, machine),
      options_(options),
      limit_(options.memory.value_or(machine.memory)),
      outlines_(outlines_of(pricer_)),
      space_(outlines_[0], options.layout, pricer_.dims_of_loop()) {
  for (size_t again = 0; again < outlines_.size(); ++again) {
    const bool in_loop = model.is_loop || pricer_.is_looped();
    const bool twice = in_loop || model.again[again].second != "none";
    const Passes passes{twice ? 2.0 : 1.0, in_loop ? 2.0 : 1.0, model.wide_sums,
                        model.sums_of_parts, model.offload_state};
    estimates_.emplace_back(outlines_[again], machine, model.part, passes);
  }
}

void PlanSearch::search(std::vector<Assignment> assignments) {
  assignments_ = std::move(assignments);
  push_assignments();
  std::vector<Entry> batch;
  while (take_next(batch)) {
    for (Priced& priced : price(batch)) {
      learn(priced);
      if (priced.error.empty()) priced_.push_back(std::move(priced));
      if (priced_.empty() || !fits(priced_.back().plan)) continue;
      if (best_ >= 0 && priced_.back().plan.seconds >= best_seconds()) continue;
      if (best_ < 0) first_seconds_ = seconds();
      best_ = static_cast<int>(priced_.size()) - 1;
    }
  }
}

void PlanSearch::push_assignments() {
  std::vector<Assignment> plain;
  std::swap(plain, assignments_);
  for (const Assignment& a : plain) {
    if (is_mirrored(a)) continue;
    Entry entry;
    entry.is_open = true;
    entry.assignment = assignments_.size();
    assignments_.push_back(space_.with_fixed(a));
    entry.bound = estimates_[0].least(assignments_.back(), microbatches(0));
    entry.key = entry.bound;
    queue_.push(entry);
  }
}

/// Another assignment is the same but for the order of axes of equal size, which makes no
/// difference where all devices are joined alike.
bool PlanSearch::is_mirrored(const Assignment& a) const {
  const std::vector<LinkTier>& links = pricer_.machine().links;
  const bool alike = links.size() < 2 || links[0].devices >= a.mesh.size();
  const auto is_fixed = [](const LayoutRule& rule) { return !rule.automatic; };
  const std::vector<LayoutRule>& rules = options_.layout.rules();
  if (meshes_are_free_ || !alike || std::any_of(rules.begin(), rules.end(), is_fixed)) return false;
  for (size_t i = 1; i < a.picks.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const MeshAxis &x = a.mesh.axes()[j], &y = a.mesh.axes()[i];
      if (x.size == y.size && x.link == y.link && a.picks[j] > a.picks[i]) return true;
    }
  }
  return false;
}

/// Fills `batch` with plans to price; false where the search is over.
bool PlanSearch::take_next(std::vector<Entry>& batch) {
  batch.clear();
  const bool is_found = best_ >= 0 || below_ < 1e300;
  const double most = is_found ? options_.seconds : 3 * options_.seconds;
  while (batch.size() < kThreads && !queue_.empty() && seconds() < most) {
    Entry entry = queue_.top();
    queue_.pop();
    if (entry.bound >= cutoff()) continue;
    if (contradictions_.contains(assignments_[entry.assignment].picks)) continue;
    if (entry.is_open) {
      expand(entry);
      continue;
    }
    entry.bound = std::max(entry.bound, known_bound(entry));
    const auto slower = slower_.find(kind_of(entry));
    const double factor = slower == slower_.end() ? 1 : slower->second;
    const double key = std::max(entry.bound, entry.guess * factor);
    if (key > entry.key * (1 + 1e-9)) {
      entry.key = key;
      queue_.push(std::move(entry));
      continue;
    }
    if (is_too_large(entry)) {
      more_parts(entry);
      continue;
    }
    batch.push_back(std::move(entry));
  }
  return !batch.empty();
}

/// Axes that talk most come last: inside a node, where links are fastest.
void PlanSearch::order_axes(Assignment& a) const {
  std::vector<size_t> order(a.picks.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  Assignment best;
  double least = 0;
  do {
    Assignment next;
    std::vector<MeshAxis> axes;
    for (const size_t i : order) {
      axes.push_back(a.mesh.axes()[i]);
      next.picks.push_back(a.picks[i]);
    }
    next.mesh = Mesh(axes);
    const double seconds = estimates_[0].exchanges(next, {}, microbatches(0)).held_up;
    if (!best.picks.empty() && seconds >= least) continue;
    least = seconds;
    best = std::move(next);
  } while (std::next_permutation(order.begin(), order.end()));
  a = space_.named(best);
}

std::vector<Storage> PlanSearch::storages(const Assignment& a) const {
  std::vector<int> copies;
  for (int axis = 0; axis < static_cast<int>(a.picks.size()); ++axis) {
    if (a.mesh.axes()[axis].size > 1 && estimates_[0].copies(a, axis) > kCopies)
      copies.push_back(axis);
  }
  std::vector<std::vector<int>> overs;
  if (!copies.empty()) overs.push_back(copies);
  for (const int axis : copies) {
    if (copies.size() > 1) overs.push_back({axis});
  }
  std::vector<Storage> all = {{}};
  for (const std::vector<int>& over : overs) {
    for (const int stage : {1, 2, 3}) all.push_back({stage, over});
  }
  return all;
}

/// The first number of parts from `from` on of which it is guessed that it fits; the number of all
/// if none does.
size_t PlanSearch::least_parts(size_t assignment, const Storage& storage, size_t again, size_t from,
                               double slack) {
  const size_t all = pricer_.model().microbatches.size();
  if (limit_ == 0) return from;
  const auto larger = larger_.find({assignments_[assignment].picks, storage.stage, again});
  const double factor = larger == larger_.end() ? 1 : larger->second;
  for (size_t parts = from; parts < all; ++parts) {
    const MemoryEstimate m =
        estimates_[again].memory(assignments_[assignment], storage, microbatches(parts));
    if (m.stored > static_cast<double>(limit_)) {
      least_stored_ = std::min(least_stored_, m.stored);
      return all;
    }
    if (m.stored + factor * m.transient <= slack * static_cast<double>(limit_)) return parts;
  }
  return all;
}

/// Of two neighbouring axes for the same dims, stored alike over both, one axis makes the same
/// plan.
bool PlanSearch::is_merged(const Assignment& a, const Storage& storage) const {
  const auto stores = [&](size_t axis) {
    return std::find(storage.axes.begin(), storage.axes.end(), axis) != storage.axes.end();
  };
  for (size_t i = 1; i < a.picks.size(); ++i) {
    if (a.picks[i] == 0 || a.picks[i] != a.picks[i - 1] || stores(i) != stores(i - 1)) continue;
    const int64_t one = a.mesh.axes()[i].size, other = a.mesh.axes()[i - 1].size,
                  size = one * other;
    if (one == 1 || other == 1) continue;
    bool fits = true;
    for (DimSet rest = a.picks[i]; rest != 0; rest &= rest - 1)
      fits = fits && outlines_[0].sizes[std::countr_zero(rest)] >= size;
    if (fits) return true;
  }
  return false;
}

void PlanSearch::expand(const Entry& entry) {
  const size_t i = entry.assignment;
  if (meshes_are_free_) order_axes(assignments_[i]);
  bool any = false;
  for (const Storage& storage : storages(assignments_[i])) {
    if (meshes_are_free_ && is_merged(assignments_[i], storage)) {
      any = true;  // as the assignment with one axis
      continue;
    }
    for (size_t again = 0; again < outlines_.size(); ++again) {
      const bool regathers = pricer_.model().again[again].second != "none";
      if (regathers && storage.stage < 3) continue;
      const size_t parts = least_parts(i, storage, again, 0, kTooLarge);
      if (parts == pricer_.model().microbatches.size()) continue;
      any = true;
      push_plan(i, storage, again, parts);
      // What fits for sure need not make anything again.
      if (least_parts(i, storage, again, 0, 1 / kTooLarge) == 0) break;
    }
  }
  too_large_ += any ? 0 : 1;
}

void PlanSearch::push_plan(size_t assignment, const Storage& storage, size_t again, size_t parts) {
  const Assignment& a = assignments_[assignment];
  Entry entry;
  entry.assignment = assignment;
  entry.storage = storage;
  entry.again = again;
  entry.parts = parts;
  entry.bound = estimates_[again].least(a, microbatches(parts));
  const Estimates::Exchanges sent = estimates_[again].exchanges(a, storage, microbatches(parts));
  entry.guess = kComputing * entry.bound + sent.held_up +
                std::max(kExposed * sent.beside, sent.beside - kHides * entry.bound);
  entry.bound += sent.awaited;
  // Where transfers run beside computing, the step is no shorter than those of one set of axes.
  if (pricer_.machine().overlap.possible) entry.bound = std::max(entry.bound, sent.once);
  entry.transient = estimates_[again].memory(a, storage, microbatches(parts)).transient;
  const auto slower = slower_.find(kind_of(entry));
  entry.key = entry.guess * (slower == slower_.end() ? 1 : slower->second);
  if (entry.bound < cutoff()) queue_.push(std::move(entry));
}

PlanSearch::Kind PlanSearch::kind_of(const Entry& entry) const {
  return {assignments_[entry.assignment].picks, entry.storage.stage, entry.again};
}

/// What the same assignment takes with other storage, or the same computing with other axes, as far
/// as that is priced.
double PlanSearch::known_bound(const Entry& entry) const {
  const auto known = known_.find({entry.assignment, entry.again, entry.parts});
  const auto computing = known_computing_.find(
      {estimates_[0].cuts(assignments_[entry.assignment]), entry.again, entry.parts});
  return std::max(known == known_.end() ? 0 : known->second,
                  computing == known_computing_.end() ? 0 : computing->second);
}

void PlanSearch::learn(const Priced& priced) {
  const Entry& from = priced.from;
  if (!priced.error.empty()) {
    ++illegal_;
    if (first_error_.empty()) first_error_ = priced.error;
    if (priced.contradicts) contradictions_.insert(assignments_[from.assignment].picks);
    return;
  }
  const PricedPlan& p = priced.plan;
  slower_[kind_of(from)] = std::sqrt(p.seconds / from.guess);  // half of it: sizes differ
  if (from.transient > 0)
    larger_[kind_of(from)] = static_cast<double>(p.transient + p.inputs) / from.transient;
  const Assignment& a = assignments_[from.assignment];
  double least = p.compute - p.update;
  for (const PlanAxes& axes : p.by_axes) {
    bool copies = false;
    for (size_t axis = 0; axis < a.picks.size(); ++axis) {
      const std::string in = "+" + axes.axes + "+", name = "+" + a.mesh.axes()[axis].name + "+";
      copies = copies || (in.find(name) != std::string::npos &&
                          estimates_[0].copies(a, static_cast<int>(axis)) > kCopies);
    }
    if (!copies) least += axes.exposed;
  }
  const auto keep = [](double& known, double seconds) {
    known = known == 0 ? seconds : std::min(known, seconds);
  };
  keep(known_[{from.assignment, from.again, from.parts}], least);
  keep(known_computing_[{estimates_[0].cuts(a), from.again, from.parts}], p.compute - p.update);
  if (!fits(p)) more_parts(from);
}

/// By what a plan of the same kind on another mesh needed.
bool PlanSearch::is_too_large(const Entry& entry) const {
  const auto larger = larger_.find(kind_of(entry));
  if (limit_ == 0 || larger == larger_.end()) return false;
  const MemoryEstimate m = estimates_[entry.again].memory(assignments_[entry.assignment],
                                                          entry.storage, microbatches(entry.parts));
  return m.stored + larger->second * m.transient > kSurelyTooLarge * static_cast<double>(limit_);
}

void PlanSearch::more_parts(const Entry& entry) {
  const size_t next =
      least_parts(entry.assignment, entry.storage, entry.again, entry.parts + 1, kSurelyTooLarge);
  if (next < pricer_.model().microbatches.size())
    push_plan(entry.assignment, entry.storage, entry.again, next);
}

double PlanSearch::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

double PlanSearch::best_seconds() const { return priced_.at(best_).plan.seconds; }

}  // namespace tessera
