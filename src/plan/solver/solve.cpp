#include <algorithm>
#include <cmath>
#include <limits>

#include "base/fail.h"
#include "plan/solver/load.h"
#include "plan/solver/reduce.h"
#include "plan/solver/search.h"
#include "tessera/solver.h"

namespace tessera::solver {

namespace {

[[noreturn]] void fail_without_plan(const Problem& problem, const Reduction& reduction,
                                    const Found& found, double seconds) {
  TESSERA_REQUIRE(!found.impossible || found.near,
                  "[solve] nothing is allowed: every choice has a forbidden strategy or pair");
  std::string known;
  if (found.near) {
    const Evaluation e = evaluate(problem, reduction.expand(found.least_excess));
    known = fmt::format("; one that needs {} bytes, at time {}, is known", e.peak, e.at);
  }
  const std::string what = found.impossible
                               ? "no choice fits"
                               : fmt::format("in {:.0f} s no choice was found that fits", seconds);
  TESSERA_REQUIRE(!problem.limit, "[solve] {} into the usage limit of {} bytes{}", what,
                  *problem.limit, known);
  fail(ErrorKind::usage, "[solve] in {:.0f} s no choice was found in which nothing is forbidden",
       seconds);
}

}  // namespace

double Solution::gap() const {
  return cost == bound ? 0 : static_cast<double>(cost - bound) / static_cast<double>(cost);
}

void offer(const Model& model, const std::vector<int>& choice, const Clock& clock, Found& found) {
  const Value value = value_of(model, choice);
  if (value.forbidden > 0) return;
  if (value.excess > 0) {
    if (!found.near || value.excess < value_of(model, found.least_excess).excess) {
      found.near = true;
      found.least_excess = choice;
    }
    return;
  }
  if (found.has && value.cost >= found.cost) return;
  if (!found.has) found.first_seconds = clock.seconds();
  found.has = true;
  found.choice = choice;
  found.cost = value.cost;
}

namespace {

/// Converts a bound of the model to one in the problem's costs.
int64_t unscaled_bound(const Model& model, int64_t bound) {
  if (model.shift >= 0) {
    const int64_t unit = int64_t{1} << model.shift;
    return (bound + unit - 1) / unit;
  }
  return static_cast<int64_t>(std::min<__int128>(static_cast<__int128>(bound) << -model.shift,
                                                 std::numeric_limits<int64_t>::max()));
}

Solution solve_scaled(const Problem& problem, const Options& options) {
  const Clock clock(options.seconds);
  const Reduction reduction(problem);
  TESSERA_REQUIRE(reduction.infeasible().empty(), "[solve] nothing is allowed: {}",
                  reduction.infeasible());
  const Model& model = reduction.model();
  Found found;
  Elimination elimination(model, options.entries);
  if (elimination.fits()) {
    solve_narrow(model, elimination, options, clock, found);
  } else {
    solve_wide(model, options, clock, found);
  }
  if (!found.has) fail_without_plan(problem, reduction, found, clock.seconds());
  Solution s;
  s.choice = reduction.expand(found.choice);
  s.cost = evaluate(problem, s.choice).cost;
  s.bound = std::min(s.cost, unscaled_bound(model, found.bound));
  s.optimal = s.bound == s.cost;
  s.seconds = clock.seconds();
  s.first_seconds = found.first_seconds;
  for (const int64_t p : found.prices)
    s.price += std::ldexp(static_cast<double>(p) / static_cast<double>(model.limit), -model.shift);
  s.nodes = model.nodes();
  s.how = found.how;
  return s;
}

/// The problem without the strategies that alone cost more than a known choice.
Problem below(const Problem& problem, int64_t cost) {
  Problem less = problem;
  const auto forbid = [&](std::vector<int64_t>& costs) {
    for (int64_t& c : costs) c = c > cost ? kForbidden : c;
  };
  for (Node& node : less.nodes) forbid(node.cost);
  for (Edge& edge : less.edges) forbid(edge.cost);
  return less;
}

constexpr double kFirst = 0.25;  ///< share of the time for the first solve, if costs are rounded

}  // namespace

/// If costs are too large to be added exactly, a first solve tells which of them cannot be in the
/// best choice. Without those, sums are often exact.
Solution solve(const Problem& problem, const Options& options) {
  check(problem);
  if (shift_of(problem) >= 0) return solve_scaled(problem, options);
  Options part = options;
  part.seconds = kFirst * options.seconds;
  const Solution first = solve_scaled(problem, part);
  TESSERA_REQUIRE(
      first.cost < std::numeric_limits<int64_t>::max(),
      "[solve] the least cost that was found is 2^63 - 1 or more; divide all costs by 1024");
  if (first.optimal) return first;
  part.seconds = options.seconds - first.seconds;
  Solution s = solve_scaled(below(problem, first.cost), part);
  s.bound = std::max(first.bound, s.bound);
  if (first.cost < s.cost) s.choice = first.choice, s.cost = first.cost;
  s.bound = std::min(s.bound, s.cost);
  s.optimal = s.bound == s.cost;
  s.seconds += first.seconds;
  s.first_seconds = first.first_seconds;
  return s;
}

}  // namespace tessera::solver
