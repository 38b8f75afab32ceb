// Wide graphs: one thread raises the bound by dual ascent, the other improves plans, and each uses
// what the other finds: prices for the moves, the cost of a plan as the target of the prices.
#include <algorithm>
#include <mutex>
#include <thread>

#include "plan/solver/dual.h"
#include "plan/solver/forest_search.h"
#include "plan/solver/search.h"

namespace tessera::solver {

namespace {

/// What the two threads share.
struct Shared {
  std::mutex mutex;
  Found& found;
  std::vector<int> decoded;  ///< of the last pass
  int64_t passes = 0;
};

constexpr double kSlack = 0.04;  // that plans may get worse by at the begin of a cycle

bool closed(const Found& found) { return found.has && found.cost <= found.bound; }

/// Raises the bound until the time is up.
class Ascent {
 public:
  Ascent(const Model& model, const Clock& clock, Shared& shared)
      : model_(model), clock_(clock), shared_(shared), dual_(model) {}

  /// False at the end.
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
    } else if (model_.moments > 0) {
      const int64_t gap = std::max<int64_t>(std::abs(found.bound) / 20, 1024);
      dual_.move_prices(step_,
                        !found.has ? found.bound + gap : std::min(found.cost, found.bound + gap));
    }
    return !clock_.over() && !closed(found);
  }

 private:
  const Model& model_;
  const Clock& clock_;
  Shared& shared_;
  DualAscent dual_;
  double step_ = 0.3;
  int stale_ = 0, patience_ = 20;
};

/// Improves plans until the time is up, in cycles with ever less slack: by turns from what the
/// ascent decodes and from the best plan.
void search(const Model& model, double cycle, const Clock& clock, Shared& shared) {
  std::unique_lock lock(shared.mutex);
  for (uint64_t turn = 0; !clock.over() && !closed(shared.found); ++turn) {
    const bool from_best = shared.found.has && turn % 2 == 1;
    ForestSearch forest(model, from_best ? shared.found.choice : shared.decoded, turn);
    const double begin = clock.seconds();
    double phase = 0;
    while (phase < 1 && !clock.over() && !closed(shared.found)) {
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
  if (clock.over() || closed(found)) return;
  std::thread other([&] {
    while (ascent.pass()) {
    }
  });
  search(model, options.seconds / 8, clock, shared);
  other.join();
}

}  // namespace tessera::solver
