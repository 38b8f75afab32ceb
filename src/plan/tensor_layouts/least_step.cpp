// Whatever the schedule, there is a compute lane and a lane for each set of axes. Let a second of
// compute count C, and a second of a transfer over the axes l count T_l, so that at no instant more
// than one second is counted in a second. Then no step takes less than its steps count. The player
// lets all lanes transfer while the compute lane waits, and slows both kinds down by factors c and
// t where they meet (Overlap). So all is well if
//     C <= 1,  sum of T_l <= 1,  C / c + sum of T_l / t <= 1.
// With these weights the problem of choice has costs that add up, and its optimum is a bound for
// all layouts. C = 1 is best where compute takes most, with a little left for transfers, because
// they slow it down; T_l = 1 where one lane takes most.
//
// What is known of the order of ops (StepOrder) gives more freedom. Before the gradient begins and
// afterwards are two times with weights of their own: what may be at either counts the lesser of
// the two. And of a chain of ops each of which waits for the one before, transfers do not meet
// compute, but for that of ops beside the chain. So each link of the chain is a time with weights
// of its own. Let a transfer that is the link count K more, and compute beside it B:
//     K + sum of T_l <= 1,  B <= 1,  B / c + (K + sum of T_l) / t <= 1.
// Compute that may run beside several links counts the least of their B.
//
// The bound is a concave function of the weights: for each choice it is at most what this choice
// counts. The weights that count most for the choices found so far (Kelley 1960), found by small
// random changes, lie far from each other in turn. So those tried next, but for the first, are
// nearer to the best of all so far (Wentges 1997).
#include "plan/tensor_layouts/least_step.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <utility>

namespace tessera {

double least_sent(const Overlap& overlap) {
  if (!overlap.possible) return 1;
  return std::clamp(overlap.transfer * (1 - 1 / overlap.compute), 0.0, 1.0);
}

namespace {

constexpr int kMostSolutions = 24, kChanges = 6000;
constexpr int kPlain = 4;         ///< of these: with one weight for all links of a phase
constexpr double kAsIs = -1;      ///< no weight
constexpr double kNear = 0.001;   ///< of the bound: further weights do not pay
constexpr double kStays = 0.7;    ///< share of the best weights in those that are tried next
constexpr double kOthers = 0.25;  ///< of what transfers count, those beside the chain's
constexpr double kOneOf = 0.125;  ///< of the time limit, for one choice but the first
constexpr double kLinks = 0.6;    ///< of the changes: those of links of the chain

constexpr size_t kBefore = 0, kAfter = 1, kEither = 2;  // of ByPhase

/// Weights as free numbers: per phase what transfers count together, in [0, 1], and a share for
/// each lane; per link of the chain the share of the rest that it counts.
struct Point {
  struct Part {
    double sent = 0;
    std::vector<double> shares;
  };
  std::array<Part, 2> phases;
  std::vector<double> chain;
};

class Weights {
 public:
  Weights(const Mesh& mesh, const Overlap& overlap, const StepOrder& order)
      : overlap_(overlap), order_(order) {
    lanes_.emplace_back();
    for (int a = 0; a < mesh.rank(); ++a) {
      if (mesh.axes()[static_cast<size_t>(a)].size == 1) continue;
      for (size_t i = 0, before = lanes_.size(); i < before; ++i) {
        lanes_.push_back(lanes_[i]);
        lanes_.back().push_back(a);
      }
    }
    lanes_.erase(lanes_.begin());
  }

  /// Compute counts wholly; `chain`: see Point.
  Point start(double chain) const {
    Point point;
    for (Point::Part& part : point.phases)
      part = {least_sent(overlap_), std::vector<double>(lanes_.size(), 1)};
    point.chain.assign(static_cast<size_t>(order_.links()), chain);
    for (int l = 0; l < order_.links(); ++l) {
      if (!order_.is_alone(l)) continue;
      point.chain[static_cast<size_t>(l)] = 1;
      // Gradients are sent later, so here little else is.
      if (order_.of_link(l) == Phase::before)
        point.phases[kBefore].sent = kOthers * least_sent(overlap_);
    }
    return point;
  }

  /// All links of a phase wholly, or not at all; kAsIs for those of the other.
  std::vector<std::vector<double>> patterns() const {
    std::vector<std::vector<double>> all;
    for (const Phase phase : {Phase::before, Phase::after}) {
      for (const double to : {0.0, 1.0}) {
        all.emplace_back();
        for (int l = 0; l < order_.links(); ++l)
          all.back().push_back(order_.of_link(l) == phase ? to : kAsIs);
      }
    }
    return all;
  }

  /// `patterns`: weights of links to move towards.
  template <typename Random>
  Point changed(Point point, const std::vector<std::vector<double>>& patterns,
                Random& random) const {
    std::uniform_real_distribution<double> unit(0, 1);
    const double size = std::pow(10.0, -3 * unit(random));
    if (!patterns.empty() && unit(random) < kLinks) {
      const std::vector<double>& to = patterns[random() % patterns.size()];
      for (size_t l = 0; l < to.size(); ++l) {
        if (to[l] != kAsIs) point.chain[l] += size * (to[l] - point.chain[l]);
      }
      return point;
    }
    const auto move = [&](double& x) { x = std::clamp(x + size * (unit(random) - 0.5), 0.0, 1.0); };
    for (size_t p = 0; p < (order_.has_phases() ? 2U : 1U); ++p) {
      Point::Part& part = point.phases[p];
      if (unit(random) < 0.5) move(part.sent);
      for (double& share : part.shares) {
        if (unit(random) < 0.5) move(share);
      }
    }
    return point;
  }

  static Point between(Point a, const Point& b, double of_b) {
    const auto move = [&](double& x, double to) { x += of_b * (to - x); };
    for (size_t p = 0; p < a.phases.size(); ++p) {
      Point::Part& part = a.phases[p];
      move(part.sent, b.phases[p].sent);
      for (size_t l = 0; l < part.shares.size(); ++l) move(part.shares[l], b.phases[p].shares[l]);
    }
    for (size_t l = 0; l < a.chain.size(); ++l) move(a.chain[l], b.chain[l]);
    return a;
  }

  /// What compute counts beside transfers that count so much.
  double beside(double sent) const {
    if (!overlap_.possible) return 1;
    return std::clamp(overlap_.compute * (1 - sent / overlap_.transfer), 0.0, 1.0);
  }

  ByPhase<StepWeights> of(const Point& point) const {
    ByPhase<StepWeights> weights;
    for (size_t p = 0; p < 2; ++p) weights[p] = of(point.phases[order_.has_phases() ? p : kBefore]);
    for (int l = 0; l < order_.links(); ++l) {
      const auto& part = point.phases[order_.of_link(l) == Phase::before ? kBefore : kAfter];
      const double chain = point.chain[static_cast<size_t>(l)] * (1 - part.sent);
      for (size_t p = 0; p < 2; ++p) {
        weights[p].chain.push_back(chain);
        weights[p].beside.push_back(order_.is_alone(l) ? 1 : beside(part.sent + chain));
      }
    }
    weights[kEither] = weights[kBefore];
    weights[kEither].compute = std::min(weights[kBefore].compute, weights[kAfter].compute);
    for (size_t l = 0; l < lanes_.size(); ++l) {
      double& either = weights[kEither].lanes[l].second;
      either = std::min(either, weights[kAfter].lanes[l].second);
    }
    return weights;
  }

 private:
  StepWeights of(const Point::Part& part) const {
    StepWeights weights;
    weights.compute = beside(part.sent);
    double all = 0;
    for (const double share : part.shares) all += share;
    for (size_t l = 0; l < lanes_.size(); ++l)
      weights.lanes.emplace_back(lanes_[l], all > 0 ? part.sent * part.shares[l] / all : 0);
    return weights;
  }

  const Overlap& overlap_;
  const StepOrder& order_;
  std::vector<Lane> lanes_;  ///< all sets of axes
};

double counted(const ByPhase<PlacedTimes>& times, const ByPhase<StepWeights>& weights) {
  double seconds = 0;
  for (size_t p = 0; p < times.size(); ++p) seconds += weights[p].of(times[p]);
  return seconds;
}

/// What choices count, each exact at the weights that it was found with.
class Cuts {
 public:
  explicit Cuts(const StepOrder& order)
      : order_(order), links_(static_cast<size_t>(order.links())) {}

  /// `more`: than `times`, at those weights.
  void add(double more, ByPhase<PlacedTimes> times) {
    for (const PlacedTimes& t : times) {
      for (const auto& [links, seconds] : t.kernels) ranges_.try_emplace(links, ranges_.size());
    }
    Cut cut{more, {}, std::vector<double>(links_, 0), {}};
    for (size_t p = 0; p < times.size(); ++p) {
      for (const auto& [links, seconds] : times[p].kernels)
        cut.kernels.push_back({p, ranges_.at(links), seconds});
      for (const auto& [link, seconds] : times[p].chain)
        cut.chain[static_cast<size_t>(link)] += seconds;
      cut.sent[p].sent = std::move(times[p].sent);
    }
    cuts_.push_back(std::move(cut));
  }

  double least(const ByPhase<StepWeights>& weights) const {
    // The least beside 1, 2, 4, ... links in a row, from each; all phases have the same.
    std::vector<std::vector<double>> rows{weights[kBefore].beside};
    for (size_t n = 1; 2 * n <= links_; n *= 2) {
      const std::vector<double>& half = rows.back();
      std::vector<double> row(links_ - 2 * n + 1);
      for (size_t l = 0; l < row.size(); ++l) row[l] = std::min(half[l], half[l + n]);
      rows.push_back(std::move(row));
    }
    std::vector<double> of_range(ranges_.size(), std::numeric_limits<double>::infinity());
    for (const auto& [links, number] : ranges_) {
      if (links == kNothing) of_range[number] = 0;
      if (links.first >= links.last || links == kNothing) continue;
      const auto many = static_cast<unsigned>(links.last - links.first);
      const std::vector<double>& row = rows[static_cast<size_t>(std::bit_width(many)) - 1];
      of_range[number] = std::min(row[static_cast<size_t>(links.first)],
                                  row[static_cast<size_t>(links.last) - std::bit_floor(many)]);
    }
    double least = std::numeric_limits<double>::infinity();
    for (const Cut& cut : cuts_) {
      double seconds = cut.more + counted(cut.sent, weights);
      for (const Kernels& k : cut.kernels)
        seconds += std::min(weights[k.phase].compute, of_range[k.range]) * k.seconds;
      for (size_t l = 0; l < links_; ++l) seconds += weights[kBefore].chain[l] * cut.chain[l];
      least = std::min(least, seconds);
    }
    return least;
  }

  /// The links that are best counted wholly, and the others not at all, for the mean of the last
  /// `count` choices. `gain`, `loss`: of a second of a link, and of compute beside it. Of each link
  /// in turn it is found what is best up to it, if it is counted, by the one counted before it:
  /// compute that may run beside both counts less already. Links that stand alone are all counted.
  std::vector<double> pattern(size_t count, double gain, double loss) const {
    const size_t n = links_;
    std::vector<double> gains(n, 0);
    // [i][j]: compute that may run beside i, and begins to at j
    std::vector<std::vector<double>> begins(n, std::vector<double>(n + 1, 0));
    for (size_t c = cuts_.size() - count; c < cuts_.size(); ++c) {
      for (size_t l = 0; l < n; ++l) gains[l] += gain * cuts_[c].chain[l];
      std::vector<double> of_range(ranges_.size(), 0);
      for (const Kernels& k : cuts_[c].kernels) of_range[k.range] += loss * k.seconds;
      for (const auto& [links, number] : ranges_) {
        if (links == kNothing) continue;
        for (int l = links.first; l < links.last; ++l)
          begins[static_cast<size_t>(l)][static_cast<size_t>(links.first)] += of_range[number];
      }
    }
    std::vector<double> best(n, 0);
    std::vector<int> before(n, -1);
    int last = -1;
    for (size_t i = 0; i < n; ++i) {
      double beside = 0, most = -std::numeric_limits<double>::infinity();
      best[i] = most;
      if (order_.is_alone(static_cast<int>(i))) continue;
      for (size_t j = i + 1; j-- > 0;) {  // all between j and i are not counted
        beside += begins[i][j];
        const double value = gains[i] - beside + (j > 0 ? best[j - 1] : 0);
        if (value > most) most = value, before[i] = static_cast<int>(j) - 1;
      }
      best[i] = most;
      if (last < 0 ? most > 0 : most > best[static_cast<size_t>(last)]) last = static_cast<int>(i);
    }
    std::vector<double> pattern(n, 0);
    for (int i = last; i >= 0; i = before[static_cast<size_t>(i)])
      pattern[static_cast<size_t>(i)] = 1;
    for (size_t i = 0; i < n; ++i) {
      if (order_.is_alone(static_cast<int>(i))) pattern[i] = 1;
    }
    return pattern;
  }

  size_t size() const { return cuts_.size(); }

 private:
  struct Kernels {
    size_t phase, range;
    double seconds;
  };
  struct Cut {
    double more;
    std::vector<Kernels> kernels;
    std::vector<double> chain;  ///< by link
    ByPhase<PlacedTimes> sent;  ///< nothing else
  };
  const StepOrder& order_;
  const size_t links_;
  std::map<Links, size_t> ranges_;
  std::vector<Cut> cuts_;
};

}  // namespace

LeastStep least_step(LayoutProblem& problem, const Costs& costs, const ByPhase<PlacedTimes>& shared,
                     double limit) {
  const Weights all(costs.mesh(), costs.machine().overlap, problem.order());
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::duration<double>(limit);
  std::mt19937_64 random(1);
  LeastStep best;
  Cuts cuts(problem.order());
  std::vector<std::vector<double>> patterns = all.patterns();
  solver::Options options;
  options.seconds = limit;
  Point point = all.start(0), best_point = point;
  for (int n = 0; n < kMostSolutions && (n == 0 || Clock::now() < until); ++n) {
    const ByPhase<StepWeights> weights = all.of(point);
    const double rest = counted(shared, weights);
    problem.set_weights(weights);
    const solver::Solution solution = solver::solve(problem.problem(), options);
    if (solution.choice.empty()) break;
    const double bound = LayoutProblem::seconds(solution.bound) + rest;
    if (bound > best.seconds) best = {bound, solution.choice, weights}, best_point = point;
    ByPhase<PlacedTimes> times = problem.least(solution.choice);
    for (size_t p = 0; p < shared.size(); ++p) times[p].add(shared[p], 1);
    const double more = LayoutProblem::seconds(solution.cost) + rest - counted(times, weights);
    cuts.add(more, std::move(times));
    const double loss = 1 - all.beside(1), gain = 1 - least_sent(costs.machine().overlap);
    if (n >= kPlain) {
      for (const size_t count : {size_t{1}, cuts.size()})
        patterns.push_back(cuts.pattern(count, gain, loss));
    }
    options.seconds = kOneOf * limit;
    if (n == 0) {
      point = all.start(0.5);
      continue;
    }
    double most = cuts.least(all.of(point));
    for (int i = 0; i < kChanges; ++i) {
      const Point next = all.changed(point, patterns, random);
      const double least = cuts.least(all.of(next));
      if (least > most) most = least, point = next;
    }
    if (n >= kPlain && most <= best.seconds * (1 + kNear)) break;
    if (n > 1) point = all.between(point, best_point, kStays);
  }
  return best;
}

}  // namespace tessera
