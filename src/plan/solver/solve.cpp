#include <algorithm>

#include "base/fail.h"
#include "plan/solver/reduce.h"
#include "plan/solver/search.h"
#include "tessera/solver.h"

namespace tessera::solver {

namespace {

[[noreturn]] void fail_without_plan(const Problem& problem, const Reduction& reduction,
                                    const Found& found, double seconds) {
  require(!found.impossible || found.near,
          "[solve] nothing is allowed: every choice has a forbidden strategy or pair");
  std::string known;
  if (found.near) {
    const Evaluation e = evaluate(problem, reduction.expand(found.least_excess));
    known = fmt::format("; one that needs {} bytes, at time {}, is known", e.peak, e.at);
  }
  const std::string what = found.impossible
                               ? "no choice fits"
                               : fmt::format("in {:.0f} s no choice was found that fits", seconds);
  require(!problem.limit, "[solve] {} into the usage limit of {} bytes{}", what, *problem.limit,
          known);
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

Solution solve(const Problem& problem, const Options& options) {
  check(problem);
  const Clock clock(options.seconds);
  const Reduction reduction(problem);
  require(reduction.infeasible().empty(), "[solve] nothing is allowed: {}", reduction.infeasible());
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
  const int64_t unit = int64_t{1} << model.shift;
  s.bound = std::min(s.cost, (found.bound + unit - 1) / unit);
  s.optimal = s.bound == s.cost;
  s.seconds = clock.seconds();
  s.first_seconds = found.first_seconds;
  for (const int64_t p : found.prices) {
    s.price +=
        static_cast<double>(p) / static_cast<double>(model.limit) / static_cast<double>(unit);
  }
  s.nodes = model.nodes();
  s.how = found.how;
  return s;
}

}  // namespace tessera::solver
