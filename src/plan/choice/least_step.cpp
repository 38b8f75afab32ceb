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
// compute, but for that of ops beside the chain. Let such a transfer count K and such compute B:
//     K + sum of T_l <= 1,  B <= 1,  B / c + (K + sum of T_l) / t <= 1.
//
// The bound is a concave function of the weights: for each choice it is at most what this choice
// counts. The weights that count most for the choices found so far (Kelley 1960), found by small
// random changes, lie far from each other in turn. So those tried next, but for the first, are
// nearer to the best of all so far (Wentges 1997).
#include "plan/choice/least_step.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <random>

namespace tessera {

double least_sent(const Overlap& overlap) {
  if (!overlap.possible) return 1;
  return std::clamp(overlap.transfer * (1 - 1 / overlap.compute), 0.0, 1.0);
}

namespace {

constexpr int kMostSolutions = 24, kChanges = 6000;
constexpr double kNear = 0.001;   ///< of the bound: further weights do not pay
constexpr double kStays = 0.7;    ///< share of the best weights in those that are tried next
constexpr double kOneOf = 0.125;  ///< of the time limit, for one choice but the first

constexpr size_t kBefore = 0, kAfter = 1, kEither = 2;  // of ByPhase

/// Weights as free numbers: per phase what transfers count together, in [0, 1], a share for each
/// lane, and the share of the rest that transfers of the chain count.
struct Point {
  struct Part {
    double sent = 0, chain = 0;
    std::vector<double> shares;
  };
  std::array<Part, 2> phases;
};

class Weights {
 public:
  Weights(const Mesh& mesh, const Overlap& overlap, bool has_phases)
      : overlap_(overlap), has_phases_(has_phases) {
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
      part = {least_sent(overlap_), chain, std::vector<double>(lanes_.size(), 1)};
    return point;
  }

  template <typename Random>
  Point changed(Point point, Random& random) const {
    std::uniform_real_distribution<double> unit(0, 1);
    const double size = std::pow(10.0, -3 * unit(random));
    for (size_t p = 0; p < (has_phases_ ? 2U : 1U); ++p) {
      Point::Part& part = point.phases[p];
      if (unit(random) < 0.5)
        part.sent = std::clamp(part.sent + size * (unit(random) - 0.5), 0.0, 1.0);
      if (unit(random) < 0.5)
        part.chain = std::clamp(part.chain + size * (unit(random) - 0.5), 0.0, 1.0);
      for (double& share : part.shares) {
        if (unit(random) < 0.5) share = std::clamp(share + size * (unit(random) - 0.5), 0.0, 1.0);
      }
    }
    return point;
  }

  static Point between(Point a, const Point& b, double of_b) {
    const auto move = [&](double& x, double to) { x += of_b * (to - x); };
    for (size_t p = 0; p < a.phases.size(); ++p) {
      Point::Part& part = a.phases[p];
      move(part.sent, b.phases[p].sent);
      move(part.chain, b.phases[p].chain);
      for (size_t l = 0; l < part.shares.size(); ++l) move(part.shares[l], b.phases[p].shares[l]);
    }
    return a;
  }

  ByPhase<StepWeights> of(const Point& point) const {
    ByPhase<StepWeights> weights;
    for (size_t p = 0; p < 2; ++p) weights[p] = of(point.phases[has_phases_ ? p : kBefore]);
    weights[kEither] = weights[kBefore];
    for (double StepWeights::*weight :
         {&StepWeights::compute, &StepWeights::beside, &StepWeights::chain})
      weights[kEither].*weight = std::min(weights[kBefore].*weight, weights[kAfter].*weight);
    for (size_t l = 0; l < lanes_.size(); ++l) {
      double& either = weights[kEither].lanes[l].second;
      either = std::min(either, weights[kAfter].lanes[l].second);
    }
    return weights;
  }

 private:
  /// What compute counts beside transfers that count so much.
  double beside(double sent) const {
    if (!overlap_.possible) return 1;
    return std::clamp(overlap_.compute * (1 - sent / overlap_.transfer), 0.0, 1.0);
  }

  StepWeights of(const Point::Part& part) const {
    StepWeights weights;
    weights.chain = part.chain * (1 - part.sent);
    weights.compute = beside(part.sent);
    weights.beside = beside(part.sent + weights.chain);
    double all = 0;
    for (const double share : part.shares) all += share;
    for (size_t l = 0; l < lanes_.size(); ++l)
      weights.lanes.emplace_back(lanes_[l], all > 0 ? part.sent * part.shares[l] / all : 0);
    return weights;
  }

  const Overlap& overlap_;
  const bool has_phases_;
  std::vector<Lane> lanes_;  ///< all sets of axes
};

double counted(const ByPhase<LeastTimes>& times, const ByPhase<StepWeights>& weights) {
  double seconds = 0;
  for (size_t p = 0; p < times.size(); ++p) seconds += weights[p].of(times[p]);
  return seconds;
}

/// What a choice counts, exact at the weights that it was found with.
struct Cut {
  double more = 0;  ///< than `times`, at those weights
  ByPhase<LeastTimes> times;
};

double least_of(const std::vector<Cut>& cuts, const ByPhase<StepWeights>& weights) {
  double least = std::numeric_limits<double>::infinity();
  for (const Cut& cut : cuts) least = std::min(least, cut.more + counted(cut.times, weights));
  return least;
}

}  // namespace

LeastStep least_step(LayoutProblem& problem, const Costs& costs, const ByPhase<LeastTimes>& shared,
                     double limit) {
  const Weights all(costs.mesh(), costs.machine().overlap, problem.order().has_phases());
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::duration<double>(limit);
  std::mt19937_64 random(1);
  LeastStep best;
  std::vector<Cut> cuts;
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
    Cut cut{0, problem.least(solution.choice)};
    for (size_t p = 0; p < shared.size(); ++p) cut.times[p].add(shared[p], 1);
    cut.more = LayoutProblem::seconds(solution.cost) + rest - counted(cut.times, weights);
    cuts.push_back(std::move(cut));
    options.seconds = kOneOf * limit;
    if (n == 0) {
      point = all.start(0.5);
      continue;
    }
    double most = least_of(cuts, all.of(point));
    for (int i = 0; i < kChanges; ++i) {
      const Point next = all.changed(point, random);
      const double least = least_of(cuts, all.of(next));
      if (least > most) most = least, point = next;
    }
    if (most <= best.seconds * (1 + kNear)) break;
    if (n > 1) point = all.between(point, best_point, kStays);
  }
  return best;
}

}  // namespace tessera
