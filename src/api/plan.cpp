// What the search found, as an answer.
#include "tessera/plan.h"

#include <algorithm>
#include <cmath>

#include "api/plan_search.h"
#include "base/fail.h"
#include "base/units.h"

namespace tessera {

namespace {

constexpr int64_t kGib = int64_t{1} << 30;

constexpr size_t kLeast = 6;  ///< plans that are priced for the least memory

/// What else could be tried, had it not been given.
std::string given_text(const PlanModel& model) {
  const bool again = model.again.size() == 1, parts = model.microbatches.size() == 1;
  if (!again && !parts) return "";
  return fmt::format("; {} given here: where {} not, `tessera plan` and --layout auto try others",
                     again && parts ? "recompute and microbatches are"
                     : again        ? "recompute is"
                                    : "microbatches are",
                     again && !parts ? "it is" : "they are");
}

}  // namespace

std::vector<Assignment> PlanSearch::on_any_mesh(int64_t devices) {
  std::vector<Assignment> all = space_.assignments(devices);
  require(!all.empty(),
          "[plan] {} devices have no mesh of up to three axes whose sizes fit the model's dims; "
          "try a number with small factors, such as {}",
          devices, int64_t{1} << static_cast<int>(std::log2(static_cast<double>(devices))));
  meshes_are_free_ = true;
  return all;
}

Plan PlanSearch::best_of(std::vector<Assignment> assignments) {
  search(std::move(assignments));
  if (best_ < 0) price_least();
  scope_plans();
  require_best();
  return finish();
}

std::optional<PricedPlan> PlanSearch::fastest_of(std::vector<Assignment> assignments,
                                                 double below) {
  below_ = below;
  search(std::move(assignments));
  if (best_ < 0) return {};
  if (best_seconds() < below) scope_plans();
  return best_seconds() < below ? std::optional(priced_[best_].plan) : std::nullopt;
}

Plan PlanSearch::run(const Mesh& mesh) { return best_of(space_.assignments(mesh)); }
Plan PlanSearch::run(int64_t devices) { return best_of(on_any_mesh(devices)); }

std::optional<PricedPlan> PlanSearch::fastest(const Mesh& mesh, double below) {
  return fastest_of(space_.assignments(mesh), below);
}
std::optional<PricedPlan> PlanSearch::fastest(int64_t devices, double below) {
  return fastest_of(on_any_mesh(devices), below);
}

void PlanSearch::price_least() {
  std::vector<std::pair<double, Entry>> found;
  Entry entry;
  entry.parts = pricer_.model().microbatches.size() - 1;
  for (entry.assignment = 0; entry.assignment < assignments_.size(); ++entry.assignment) {
    const Assignment& a = assignments_[entry.assignment];
    for (const Storage& storage : storages(a)) {
      entry.storage = storage;
      for (entry.again = 0; entry.again < outlines_.size(); ++entry.again) {
        if (pricer_.model().again[entry.again].second != "none" && storage.stage < 3) continue;
        const MemoryEstimate m =
            estimates_[entry.again].memory(a, storage, microbatches(entry.parts));
        found.emplace_back(m.stored + m.transient, entry);
      }
    }
  }
  const size_t tried = std::min(kLeast, found.size());
  std::partial_sort(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(tried), found.end(),
                    [](const auto& x, const auto& y) { return x.first < y.first; });
  for (size_t i = 0; i < tried; ++i) {
    if (meshes_are_free_) order_axes(assignments_[found[i].second.assignment]);
    for (Priced& priced : price({found[i].second})) {
      if (!priced.error.empty() && first_error_.empty()) first_error_ = priced.error;
      if (!priced.error.empty()) continue;
      priced_.push_back(std::move(priced));
      if (fits(priced_.back().plan)) best_ = static_cast<int>(priced_.size()) - 1;
    }
  }
}

void PlanSearch::require_best() {
  if (best_ >= 0) return;
  const std::string limit = bytes_text(static_cast<double>(limit_));
  if (priced_.empty()) {
    require(illegal_ > 0 || least_stored_ > 1e299,
            "[plan] nothing fits into {} a device: parameters and optimizer state alone "
            "need {} at least; use more devices",
            limit, bytes_text(least_stored_));
    fail(ErrorKind::usage, "[plan] no layout is legal{}{}", first_error_.empty() ? "" : ": ",
         first_error_.empty() ? "; give other sizes" : first_error_);
  }
  const auto least = std::min_element(
      priced_.begin(), priced_.end(),
      [](const Priced& a, const Priced& b) { return a.plan.memory() < b.plan.memory(); });
  const PricedPlan& p = least->plan;
  const int64_t needed = std::max(p.memory(), price_one(least->from, true).memory());
  fail(ErrorKind::usage,
       "[plan] nothing that was tried fits into {} a device; the least is {}: --memory {} with "
       "mesh '{}', layout '{}'{}, recompute {}, regather {}, microbatches {}, {:.3f} ms a step{}",
       limit, bytes_text(static_cast<double>(needed)), needed, p.mesh.to_string(), p.rules,
       p.zero > 0 ? fmt::format(", --zero {} --over {}", p.zero, p.over) : "", p.build.recompute,
       p.build.regather, p.build.microbatches, 1e3 * p.seconds, given_text(pricer_.model()));
}

/// The best plan lowered whole; if it does not fit then, the next one.
void PlanSearch::settle(Plan& plan) {
  std::vector<size_t> order;
  for (size_t i = 0; i < priced_.size(); ++i) {
    if (fits(priced_[i].plan)) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return priced_[a].plan.seconds < priced_[b].plan.seconds;
  });
  for (const size_t i : order) {
    PricedPlan& p = priced_[i].plan;
    best_ = static_cast<int>(i);
    plan.table_seconds = p.seconds;
    if (!p.whole) {
      std::vector<PlanTransfer> transfers = std::move(p.transfers);
      p = price_one(priced_[i].from, true);
      p.transfers = std::move(transfers);
    }
    if (fits(p)) break;
  }
  require(fits(priced_[best_].plan),
          "[plan] nothing fits into {} a device when it is lowered whole; the least of the "
          "{} plans that seemed to is {}",
          bytes_text(static_cast<double>(limit_)), order.size(),
          bytes_text(static_cast<double>(priced_[best_].plan.memory())));
  plan.best = priced_[best_].plan;
  for (const size_t i : order) {
    if (plan.runners_up.size() == options_.runners_up) break;
    if (static_cast<int>(i) != best_) plan.runners_up.push_back(priced_[i].plan);
  }
}

/// For each dim the best plan on the same mesh in which it lies otherwise; at least the same plan
/// without it is priced.
void PlanSearch::add_alternatives(Plan& plan) {
  const Entry best = priced_[best_].from;
  const Assignment chosen = assignments_[best.assignment];
  for (const std::string& dim : outlines_[0].dims) {
    const std::string now = space_.axes_of(chosen, dim);
    const Assignment plain = space_.without(chosen, dim);
    if (now != "-" && !(space_.with_fixed(plain) == chosen)) {
      Entry other = best;
      other.assignment = assignments_.size();
      assignments_.push_back(plain);
      std::vector<Priced> without;
      price_scoped({other}, scale_, 1e300, without);
      for (Priced& priced : without) priced_.push_back(std::move(priced));
    }
    const Priced* found = nullptr;
    for (const Priced& p : priced_) {
      const Assignment& a = assignments_[p.from.assignment];
      if (a.mesh.axes() != chosen.mesh.axes() || space_.axes_of(a, dim) == now) continue;
      const bool better = !found || std::make_pair(!fits(p.plan), p.plan.seconds) <
                                        std::make_pair(!fits(found->plan), found->plan.seconds);
      if (better) found = &p;
    }
    if (!found) continue;
    plan.alternatives.push_back(
        {dim, now, space_.axes_of(assignments_[found->from.assignment], dim),
         found->plan.seconds - plan.table_seconds, found->plan.memory(), fits(found->plan)});
  }
}

double PlanSearch::bound() const {
  double least = cutoff();
  for (std::priority_queue<Entry> left = queue_; !left.empty(); left.pop()) {
    const Entry& entry = left.top();
    least = std::min(least, std::max(entry.bound, known_bound(entry)));
  }
  return least;
}

Plan PlanSearch::finish() {
  Plan plan;
  plan.bound = bound();
  plan.optimal = plan.bound >= best_seconds();
  plan.space = static_cast<int64_t>(assignments_.size());
  plan.priced = static_cast<int64_t>(priced_.size());
  plan.illegal = illegal_;
  plan.too_large = too_large_;
  plan.plain_seconds = plain_seconds_;
  plan.scoped = scoped_;
  plan.first_seconds = first_seconds_;
  plan.proof_seconds = searched_seconds_;
  settle(plan);
  double with_more = plan.table_seconds;
  for (const Priced& p : priced_) {  // those lowered whole have another time than their table's
    if (!p.plan.whole && p.plan.memory() <= limit_ + kGib)
      with_more = std::min(with_more, p.plan.seconds);
  }
  plan.saved_per_gib = plan.table_seconds - with_more;
  add_alternatives(plan);
  plan.memory_limit = limit_;
  plan.machine = pricer_.machine().name;
  plan.search_seconds = seconds();
  return plan;
}

double Plan::gap() const { return optimal ? 0 : (table_seconds - bound) / table_seconds; }

Plan plan(const PlanModel& model, const Mesh& mesh, const Machine& machine,
          const PlanOptions& options) {
  return PlanSearch(model, machine, options).run(mesh);
}

Plan plan(const PlanModel& model, int64_t devices, const Machine& machine,
          const PlanOptions& options) {
  require(devices >= 1, "[plan] {} devices; there must be at least one", devices);
  return PlanSearch(model, machine, options).run(devices);
}

Plan plan(const Graph& graph, const std::vector<FunctionSpec>& functions, const Mesh& mesh,
          const Machine& machine, const PlanOptions& options) {
  const std::shared_ptr<const Graph> unowned(std::shared_ptr<const Graph>(), &graph);
  PlanModel model;
  model.build = [&](const PlanBuild&) { return PlanStep{unowned, functions}; };
  return plan(model, mesh, machine, options);
}

PricedPlan price(const PlanModel& model, const Mesh& mesh, const Layout& layout,
                 const PlanBuild& build, const Machine& machine, bool whole) {
  return Pricer(model, machine).price(mesh, layout.to_string(), build, whole);
}

}  // namespace tessera
