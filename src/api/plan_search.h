// The search for the best plan, best first.
//
// In the queue are assignments of axes to dims, and plans that are not priced yet: an assignment
// with its storage, what backward makes again, and microbatches. Each has a bound that it cannot
// beat, and a guess that says what is looked at first; guesses are corrected by what was priced of
// the same kind. An assignment that comes up is replaced by its plans; a plan that comes up is
// priced, and where it does not fit, it comes back with more microbatches. What is bound by the
// best plan's price is dropped. When the queue is empty, the best plan is optimal; when the time is
// up, the least bound in the queue states the gap.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <queue>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "api/plan_price.h"
#include "plan/space.h"

namespace tessera {

class PlanSearch {
 public:
  PlanSearch(const PlanModel& model, const Machine& machine, const PlanOptions& options);
  Plan run(const Mesh& mesh);
  Plan run(int64_t devices);
  /// The best alone, as its table has it; only what takes less than `below` seconds counts.
  std::optional<PricedPlan> fastest(const Mesh& mesh, double below);
  std::optional<PricedPlan> fastest(int64_t devices, double below);
  /// Nothing that could be faster is left.
  bool is_complete() const { return bound() >= cutoff(); }

 protected:
  /// A plan that is not priced yet; or an assignment (is_open) of which all are to come.
  struct Entry {
    double key = 0;    ///< guess, corrected
    double bound = 0;  ///< seconds that it cannot beat
    size_t assignment = 0;
    bool is_open = false;
    Storage storage = {};
    size_t again = 0, parts = 0;  ///< of the model's
    double guess = 0, transient = 0;
    std::string scoped = {};  ///< rules of segments
    bool operator<(const Entry& o) const {
      return std::tie(key, assignment, again, parts, storage) >
             std::tie(o.key, o.assignment, o.again, o.parts, o.storage);
    }
  };
  struct Priced {
    Entry from;
    PricedPlan plan;
    std::string error = {};    ///< why it is not legal
    bool contradicts = false;  ///< nor on any other mesh
  };
  using Kind = std::tuple<std::vector<DimSet>, int, size_t>;  ///< picks, stage, again

  std::vector<Assignment> on_any_mesh(int64_t devices);
  void search(std::vector<Assignment> assignments);
  Plan best_of(std::vector<Assignment> assignments);
  std::optional<PricedPlan> fastest_of(std::vector<Assignment> assignments, double below);
  void push_assignments();
  bool is_mirrored(const Assignment& a) const;
  void order_axes(Assignment& a) const;
  void expand(const Entry& entry);
  std::vector<Storage> storages(const Assignment& a) const;
  void push_plan(size_t assignment, const Storage& storage, size_t again, size_t parts);
  size_t least_parts(size_t assignment, const Storage& storage, size_t again, size_t from,
                     double slack);
  bool take_next(std::vector<Entry>& batch);
  std::vector<Priced> price(const std::vector<Entry>& batch);
  PricedPlan price_one(const Entry& entry, bool whole);
  /// Tries scoped rules with the plans of which they may make a better one than the best.
  void scope_plans();
  void scope(const Priced& plain, double until);
  void price_scoped(std::vector<Entry> entries, double scale, double until,
                    std::vector<Priced>& to);
  void relax(Priced& p, double scale, double until);
  void drop_dims(double until);
  std::pair<bool, double> order_of(const PricedPlan& p) const;
  bool is_better(const PricedPlan& x, const PricedPlan& y) const;
  void learn(const Priced& priced);
  Kind kind_of(const Entry& entry) const;
  double known_bound(const Entry& entry) const;
  bool is_too_large(const Entry& entry) const;
  /// In place of a plan that does not fit.
  void more_parts(const Entry& entry);
  std::string over_text(const Entry& entry) const;
  /// Of the model with two layers, or one.
  const Graph& few_layers();
  std::string rules_of(const Entry& entry) const;
  std::string layout_of(const Entry& entry);
  PlanBuild build_of(const Entry& entry) const;
  int64_t microbatches(size_t parts) const;
  bool fits(const PricedPlan& p) const { return limit_ == 0 || p.memory() <= limit_; }
  double seconds() const;
  double best_seconds() const;
  /// What takes as long is of no use.
  double cutoff() const { return best_ >= 0 ? std::min(best_seconds(), below_) : below_; }
  bool is_merged(const Assignment& a, const Storage& storage) const;
  /// Of what is left in the queue, and of the best.
  double bound() const;
  /// Where nothing fits: prices the plans that are estimated to need least.
  void price_least();
  void require_best();
  Plan finish();
  void settle(Plan& plan);
  void add_alternatives(Plan& plan);

  Pricer pricer_;
  const PlanOptions& options_;
  int64_t limit_;
  std::vector<Outline> outlines_;  // by `again`
  Space space_;
  std::vector<Estimates> estimates_;
  std::vector<Assignment> assignments_;  // with what fixed rules give
  std::priority_queue<Entry> queue_;
  double below_ = 1e300;
  double scale_ = 1;  // of the best's time, if it has scoped rules
  std::vector<Priced> priced_;
  std::map<Kind, double> slower_, larger_;  // priced over guessed: seconds, transient bytes
  std::map<std::tuple<size_t, size_t, size_t>, double> known_;  // assignment, again, parts
  std::map<std::tuple<std::vector<int64_t>, size_t, size_t>, double>
      known_computing_;                           // cuts of dims, again, parts
  std::set<std::vector<DimSet>> contradictions_;  // picks that no mesh makes legal
  int best_ = -1;
  bool meshes_are_free_ = false;
  int64_t illegal_ = 0, too_large_ = 0;
  double plain_seconds_ = 0;  // of the best plan without scoped rules
  int64_t scoped_ = 0;        // plans with some that were priced
  double least_stored_ = 1e300;
  std::string first_error_;
  double first_seconds_ = 0, searched_seconds_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace tessera
