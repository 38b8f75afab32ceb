// Wide graphs. One thread raises the bound by dual ascent, the other improves plans. Each uses the
// other's results: the prices guide the moves, and the cost of the best plan is the target of the
// prices.
#include <algorithm>
#include <mutex>

#include "base/threads.h"
#include "plan/solver/branch.h"
#include "plan/solver/dual.h"
#include "plan/solver/forest_search.h"
#include "plan/solver/search.h"

namespace tessera::solver {

namespace {

/// Shared by the two threads.
struct Shared {
  std::mutex mutex;
  Found& found;
  std::vector<int> decoded;  ///< choice of the last pass
  int64_t passes = 0;
};

constexpr int kWidePatience = 20;  ///< passes without a better bound
constexpr double kAscent = 0.4;    ///< share of the time before branch and bound
constexpr double kSlack = 0.04;    // at the start of a cycle: by how much plans may get worse

/// Raises the bound until the time is up.
class Ascent {
 public:
  Ascent(const Model& model, const Clock& clock, Shared& shared)
      : model_(model), clock_(clock), shared_(shared), dual_(model) {}

  /// One pass. Returns false when done.
  bool pass() {
    const int64_t bound = dual_.pass();
    const std::lock_guard lock(shared_.mutex);
    Found& found = shared_.found;
    offer(model_, dual_.choice(), clock_, found);
    shared_.decoded = dual_.choice();
    ++shared_.passes;
    if (found.prices.empty() || bound > found.bound) {
      if (bound - found.bound > found.bound / 100000) stale_ = 0;
      found.bound = std::max(bound, found.bound);
      found.prices = dual_.prices();
    }
    if (++stale_ >= patience_) {
      stale_ = 0;
      step_ *= 0.7;
      if (step_ < 1e-3) step_ = 0.3, patience_ *= 2;
      dual_.set_prices(found.prices);
    } else if (model_.points > 0) {
      const int64_t gap = std::max<int64_t>(std::abs(found.bound) / 20, 1024);
      dual_.move_prices(step_,
                        !found.has ? found.bound + gap : std::min(found.cost, found.bound + gap));
    }
    return !clock_.over() && !is_closed(model_, found);
  }

  /// True if new prices no longer raise the bound.
  bool rests() const { return patience_ > kWidePatience; }

  /// Branch and bound, until the time is up or nothing is left.
  void branch() {
    if (model_.points == 0) return;
    dual_.set_prices(shared_.found.prices);
    Branching branching(model_, dual_, shared_.found.bound);
    int64_t below = kWall;
    const auto offered = [&](const std::vector<int>& choice) {
      const std::lock_guard lock(shared_.mutex);
      offer(model_, choice, clock_, shared_.found);
    };
    for (bool more = true; more && !clock_.over();) {
      {
        const std::lock_guard lock(shared_.mutex);
        if (shared_.found.has) below = shared_.found.cost;
        shared_.found.bound = std::max(shared_.found.bound, std::min(branching.bound(), below));
        if (is_closed(model_, shared_.found)) return;
      }
      more = branching.split(below, offered);
    }
    const std::lock_guard lock(shared_.mutex);
    if (shared_.found.has) below = shared_.found.cost;
    shared_.found.bound = std::max(shared_.found.bound, std::min(branching.bound(), below));
  }

 private:
  const Model& model_;
  const Clock& clock_;
  Shared& shared_;
  DualAscent dual_;
  double step_ = 0.3;
  int stale_ = 0, patience_ = kWidePatience;
};

/// Improves plans until the time is up. Each cycle starts in turn from the dual's choice or from
/// the best plan, and its slack shrinks to 0.
void search(const Model& model, double cycle, const Clock& clock, Shared& shared) {
  std::unique_lock lock(shared.mutex);
  for (uint64_t turn = 0; !clock.over() && !is_closed(model, shared.found); ++turn) {
    const bool from_best = shared.found.has && turn % 2 == 1;
    ForestSearch forest(model, from_best ? shared.found.choice : shared.decoded, turn);
    const double begin = clock.seconds();
    double phase = 0;
    while (phase < 1 && !clock.over() && !is_closed(model, shared.found)) {
      forest.set_prices(shared.found.prices);
      int64_t best = shared.found.has ? shared.found.cost : kWall;
      lock.unlock();
      std::vector<int> better;
      for (int i = 0; i < 64 && !clock.over(); ++i) {
        forest.move(forest.value().feasible() ? kSlack * (1 - phase) * (1 - phase) : 0);
        if (!forest.value().feasible() || forest.value().cost >= best) continue;
        best = forest.value().cost;
        better = forest.choice();
      }
      lock.lock();
      if (!better.empty()) offer(model, better, clock, shared.found);
      phase = (clock.seconds() - begin) / cycle;
    }
  }
}

}  // namespace

void solve_wide(const Model& model, const Options& options, const Clock& clock, Found& found) {
  found.how = "dual ascent and search";
  if (model.nodes() == 0) return offer(model, {}, clock, found);
  Shared shared{{}, found, {}, 0};
  Ascent ascent(model, clock, shared);
  const double first = options.seconds / 12;
  while (ascent.pass() && (shared.passes < 20 || clock.seconds() < first) && shared.passes < 400) {
  }
  if (clock.over() || is_closed(model, found)) return;
  const auto ascend = [&] {
    const double rest = clock.seconds() + kAscent * (options.seconds - clock.seconds());
    while (ascent.pass() && (model.points == 0 || (clock.seconds() < rest && !ascent.rests()))) {
    }
    ascent.branch();
  };
  run_together({[&] { search(model, options.seconds / 8, clock, shared); }, ascend});
}

}  // namespace tessera::solver
