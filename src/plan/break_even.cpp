// Break-even bandwidths: how far the bandwidth of a link class may change before another plan
// becomes faster. The search first runs with the bandwidth far off. If another plan wins there,
// bisection finds the bandwidth at which both take equally long, and the search runs again there.
// If a third plan wins, its crossing is nearer, and so on. When none wins, no plan of the space is
// faster up to that bandwidth.
#include <algorithm>
#include <cmath>
#include <mutex>

#include "base/fail.h"
#include "plan/planner.h"

namespace tessera {

namespace {

constexpr double kFar = 64;      ///< factor up and down
constexpr double kExact = 0.01;  ///< relative error of the bandwidth
constexpr int kHalvings = 12, kSearches = 30;
constexpr double kSaves = 1e-4;  ///< a plan counts as faster if it saves this share of the time

/// The machine with the bandwidth of a link class multiplied by `factor`. In measured times only
/// the share due to bandwidth changes.
Machine with_bandwidth(const Machine& machine, size_t tier, double factor) {
  Machine m = machine;
  m.links[tier].bandwidth *= factor;
  for (CollectiveRate& rate : m.collectives) {
    if (rate.link != m.links[tier].name || rate.bandwidth <= 0) continue;
    for (auto& [bytes, seconds] : rate.measured) {
      const double sending = std::min(seconds, bytes / rate.bandwidth);
      seconds += sending / factor - sending;
    }
    rate.bandwidth *= factor;
  }
  return m;
}

/// Builds each step once: graphs do not depend on the machine.
PlanModel built_once(const PlanModel& model) {
  using Key = std::tuple<int64_t, std::string, std::string, int64_t, bool, bool>;
  struct Built {
    std::mutex mutex;
    std::map<Key, PlanStep> steps;
  };
  PlanModel once = model;
  once.build = [build = model.build, built = std::make_shared<Built>()](const PlanBuild& b) {
    const std::lock_guard lock(built->mutex);
    const Key key{b.layers,       b.recompute, b.reshard_after_forward,
                  b.microbatches, b.looped,    b.unrolled};
    const auto at = built->steps.find(key);
    return at != built->steps.end() ? at->second : built->steps[key] = build(b);
  };
  return once;
}

class BreakEvenSearch {
 public:
  BreakEvenSearch(const PlanModel& model, const Mesh* mesh, int64_t devices, const Machine& machine,
                  const PlanOptions& options, const PricedPlan& best, double seconds)
      : model_(built_once(model)),
        mesh_(mesh),
        devices_(devices),
        machine_(machine),
        options_(options),
        best_(best),
        seconds_(seconds) {
    options_.memory = options.memory.value_or(machine.usable_memory());
  }

  std::vector<BreakEven> run() {
    std::vector<BreakEven> all = used_links();
    size_t left = 2 * all.size();
    for (BreakEven& link : all) {
      for (const bool up : {false, true}) {
        until_ = now() + (seconds_ - now()) / static_cast<double>(left--);
        (up ? link.above : link.below) = side(link, up);
      }
    }
    return all;
  }

 private:
  double now() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

  /// The link classes over which the plan communicates, each with the axes that use it.
  std::vector<BreakEven> used_links() const {
    const Costs costs(machine_, best_.mesh);
    std::vector<BreakEven> used;
    for (size_t tier = 0; tier < machine_.links.size(); ++tier) {
      BreakEven link;
      for (const PlanAxes& axes : best_.by_axes) {
        std::vector<int> group;
        const std::string names = "+" + axes.axes + "+";
        for (int a = 0; a < best_.mesh.rank(); ++a) {
          if (names.find("+" + best_.mesh.axes()[a].name + "+") != std::string::npos)
            group.push_back(a);
        }
        const std::vector<size_t> tiers = costs.tiers(group);
        if (std::find(tiers.begin(), tiers.end(), tier) == tiers.end()) continue;
        link.axes += (link.axes.empty() ? "" : ", ") + axes.axes;
      }
      if (link.axes.empty()) continue;
      link.link = machine_.links[tier].name;
      link.bandwidth = machine_.links[tier].bandwidth;
      used.push_back(link);
    }
    return used;
  }

  /// The fastest plan on a machine, if it is faster there than the best plan. Searches for half of
  /// the remaining time.
  std::optional<PricedPlan> faster(const Machine& machine) {
    PlanOptions options = options_;
    options.seconds = std::max(0.05, 0.5 * (until_ - now()));
    const double below = (1 - kSaves) * price(best_, best_, machine);
    Planner search(model_, machine, options);
    std::optional<PricedPlan> found =
        mesh_ ? search.fastest(*mesh_, below) : search.fastest(devices_, below);
    is_complete_ = search.is_complete();
    return found;
  }

  double price(const PricedPlan& plan, const PricedPlan& beside, const Machine& machine) const {
    Pricer pricer(model_, machine);
    const bool in_layers = !plan.scoped.empty() || !beside.scoped.empty();
    return in_layers && !plan.build.looped && pricer.is_looped()
               ? pricer.price_layers(plan.mesh, plan.layout, plan.build).seconds
               : pricer.price(plan.mesh, plan.layout, plan.build, false).seconds;
  }

  /// By how much the best plan is slower than `other`, as a share of its time.
  double loses(const PricedPlan& other, const Machine& machine) const {
    const double mine = price(best_, other, machine);
    return 1 - price(other, best_, machine) / mine;
  }

  /// The factor nearest to 1 at which `other`, faster at `far`, takes as long as the best plan.
  double crossing(const PricedPlan& other, size_t tier, double far) const {
    double near = 1;
    for (int i = 0; i < kHalvings && std::abs(std::log(far / near)) > kExact; ++i) {
      const double middle = std::sqrt(near * far);
      (loses(other, with_bandwidth(machine_, tier, middle)) > kSaves ? far : near) = middle;
    }
    return far;
  }

  BreakEvenSide side(const BreakEven& link, bool up) {
    const auto tier = static_cast<size_t>(machine_.find_link(link.link));
    BreakEvenSide result;
    double factor = up ? kFar : 1 / kFar;
    for (int round = 0; round < kSearches && now() < until_; ++round) {
      const Machine machine = with_bandwidth(machine_, tier, factor);
      const std::optional<PricedPlan> found = faster(machine);
      if (!result.instead) result.bandwidth = link.bandwidth * factor;
      const bool is_faster = found && loses(*found, machine) > kSaves;
      // Search again at the crossing: a third plan may be faster just before it.
      if (is_faster) {
        factor = crossing(*found, tier, factor);
        result.bandwidth = link.bandwidth * factor;
        result.instead = *found;
        factor *= up ? 1 - 2 * kExact : 1 + 2 * kExact;
      }
      result.shown = is_complete_ && (!is_faster || (up ? factor <= 1 : factor >= 1));
      if (!is_faster || (up ? factor <= 1 : factor >= 1)) break;
    }
    return result;
  }

  const PlanModel model_;
  const Mesh* mesh_;
  int64_t devices_;
  const Machine& machine_;
  PlanOptions options_;
  const PricedPlan& best_;
  double seconds_, until_ = 0;
  bool is_complete_ = false;  // of the last search
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

std::vector<BreakEven> break_even(const PlanModel& model, const Mesh& mesh, const Machine& machine,
                                  const PlanOptions& options, const Plan& plan, double seconds) {
  return BreakEvenSearch(model, &mesh, 0, machine, options, plan.best, seconds).run();
}

std::vector<BreakEven> break_even(const PlanModel& model, int64_t devices, const Machine& machine,
                                  const PlanOptions& options, const Plan& plan, double seconds) {
  return BreakEvenSearch(model, nullptr, devices, machine, options, plan.best, seconds).run();
}

}  // namespace tessera
